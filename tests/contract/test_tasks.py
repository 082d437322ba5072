"""What every registered dataset, partition and model must keep."""

import dataclasses

import numpy as np
import pytest
import torch

from fedspan.benchmark import rng
from fedspan.benchmark.data.download import trained_on
from fedspan.benchmark.errors import HookError, Incompatible, UserError
from fedspan.benchmark.registry import plugins
from fedspan.benchmark.running.cell_run import run_cell
from fedspan.benchmark.task import Data, Images
from fedspan.benchmark.training.state import Paths

from ..helpers import how, toy_cell

DATASETS = plugins("dataset")
PARTITIONS = plugins("partition")
MODELS = plugins("model")
every_dataset = pytest.mark.parametrize("cls", DATASETS.values(), ids=DATASETS.keys())
every_partition = pytest.mark.parametrize("cls", PARTITIONS.values(), ids=PARTITIONS.keys())
every_model = pytest.mark.parametrize("cls", MODELS.values(), ids=MODELS.keys())
SHAPES = [(1, 8, 8), (3, 16, 16), (3, 32, 32)]


# datasets -----------------------------------------------------------------------------------------


def load(cls, cache, **settings):
    """Return the prepared dataset, or skip where its files are not at hand; absence must be one clear line."""
    try:
        return cls(**settings).prepare(cache)
    except HookError:  # its files are there, and what it makes of them is wrong
        raise
    except UserError as error:
        text = str(error)
    assert "dataset.root" in text
    assert "\n" not in text
    pytest.skip(f"it needs its data: {text}")


@every_dataset
def test_a_dataset_is_uint8_images_with_labels_and_statistics(cls, tmp_path):
    data = load(cls, tmp_path)
    channels, height, width = data.shape
    for images in (data.train, data.test):
        assert images.x.dtype == torch.uint8
        assert images.x.shape == (len(images), height, width, channels)
        assert images.y.dtype == torch.int64
        assert set(images.y.unique().tolist()) <= set(range(len(data.classes)))
    pixels = data.train.x.double().flatten(0, 2) / 255
    right = "of each channel of the training images, divided by 255"
    assert data.mean == pytest.approx(pixels.mean(0).tolist()), f"`mean` is not that {right}"
    assert data.std == pytest.approx(pixels.std(0, correction=0).tolist()), f"`std` is not that {right}"


@every_dataset
def test_a_dataset_is_the_same_every_time(cls, tmp_path):
    first, again = load(cls, tmp_path / "a"), load(cls, tmp_path / "b")
    for split, other in ((first.train, again.train), (first.test, again.test)):
        alike = torch.equal(split.x, other.x) and torch.equal(split.y, other.y)
        assert alike, "prepare() called twice returns other images or labels; draw from a generator with a fixed seed"
    assert first.digest == again.digest, "prepare() called twice returns the same images with another `digest`"


@every_dataset
def test_most_test_images_are_no_training_images(cls, tmp_path):
    """Published datasets have some in both; a dataset that returns one part twice has all."""
    data = load(cls, tmp_path)
    count = trained_on(data)
    assert count <= len(data.test) / 2, f"{count} of {len(data.test)} test images equal a training image"


@every_dataset
def test_limit_keeps_that_many_images_of_all_classes_and_changes_the_digest(cls, tmp_path):
    whole, cut = load(cls, tmp_path), load(cls, tmp_path, limit=30)
    assert len(cut.train) == min(30, len(whole.train))
    assert len(cut.test) == min(30, len(whole.test))
    counts = torch.bincount(cut.train.y, minlength=len(cut.classes))
    assert counts.max() - counts.min() <= 1, (
        f"`limit` keeps {counts.tolist()} images of the classes, not as many of each"
    )
    assert cut.digest != whole.digest, "`limit` does not change `digest`"
    facts = (cut.classes, cut.mean, cut.std) == (whole.classes, whole.mean, whole.std)
    assert facts, "`limit` changes the classes, the mean or the standard deviation; take those of all images"


# partitions ---------------------------------------------------------------------------------------


def labelled(n, clients, classes=2):
    """Return images without pixels, of as many domains, and of as many people, as there are clients."""
    draw = np.random.default_rng(1)
    y, domain = (torch.from_numpy(draw.permutation(np.arange(n) % groups)) for groups in (classes, clients))
    images = Images(torch.zeros(n, 1, 1, 1, dtype=torch.uint8), y, domain, domain)
    classes, domains = (tuple(map(str, range(groups))) for groups in (classes, clients))
    return Data(images, images, classes, (0.5,), (0.5,), "digest", domains, domains)


def split(cls, data, clients, seed=0):
    """Return a partition's split; skip the test if a user's partition says that it cannot split these images."""
    try:
        return cls().prepare(data, clients, rng.numpy_generator(seed, "partition"))
    except UserError as refused:
        if isinstance(refused, HookError) or cls.__module__.startswith("fedspan."):
            raise
        pytest.skip(str(refused))


@every_partition
@pytest.mark.parametrize("clients", [1, 2, 7])
def test_a_partition_gives_each_client_something_and_no_image_twice(cls, clients):
    whole = split(cls, labelled(400, clients), clients)
    assert len(whole.train) == clients
    parts = whole.train
    if whole.test is not None:
        assert len(whole.test) == clients
        assert min(map(len, whole.test)) >= 1
        parts += whole.test if whole.pooled else ()
    assert min(map(len, parts)) >= 1
    taken = np.concatenate(parts)
    assert len(np.unique(taken)) == len(taken)
    assert taken.min() >= 0
    assert taken.max() < (800 if whole.pooled else 400)


@every_partition
def test_a_partition_follows_its_seed_if_it_draws_at_all(cls):
    data = labelled(400, 5)
    generator, untouched = (rng.numpy_generator(0, "partition") for _ in range(2))
    same, again, other = cls().prepare(data, 5, generator), split(cls, data, 5, 0), split(cls, data, 5, 1)
    draws = generator.bit_generator.state != untouched.bit_generator.state
    assert same.digest == again.digest, "split() with the same seed returns another split; draw from `rng`"
    assert (same.digest != other.digest) == draws, "what split() draws from `rng` does not change the split"


@every_partition
def test_a_partition_draws_from_its_own_generator_and_leaves_the_labels_alone(cls):
    data = labelled(400, 5)
    labels, before = data.train.y.clone(), (str(np.random.get_state()), torch.get_rng_state().tolist())  # noqa: NPY002
    split(cls, data, 5)
    assert torch.equal(labels, data.train.y), "split() changes the labels in place"
    assert (str(np.random.get_state()), torch.get_rng_state().tolist()) == before  # noqa: NPY002


@every_partition
def test_more_clients_than_images_is_refused(cls):
    with pytest.raises(UserError, match="clients=7 is more than the 5 training images"):
        split(cls, labelled(5, 5), 7)


# models -------------------------------------------------------------------------------------------


def build(cls, shape, classes=10, seed=0):
    with rng.global_rng(seed, "init"):
        try:
            return cls().prepare(shape, classes)
        except Incompatible as reason:
            pytest.skip(str(reason))


@every_model
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_model_returns_features_and_their_logits(cls, shape):
    net = build(cls, shape, 7).eval()
    with torch.no_grad():
        features, logits = net(torch.randn(3, *shape))
    assert features.shape == (3, net.head.in_features)
    assert logits.shape == (3, 7)
    torch.testing.assert_close(net.head(features), logits)


@every_model
def test_a_model_takes_the_images_of_the_papers(cls):
    assert build(cls, (3, 32, 32), 10) is not None


@every_model
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_model_trains_on_one_image(cls, shape):
    net = build(cls, shape)
    _, logits = net.train()(torch.randn(1, *shape))
    logits.sum().backward()
    assert all(torch.isfinite(leaf.grad).all() for leaf in net.parameters() if leaf.grad is not None)


@every_model
def test_an_evaluated_image_does_not_see_its_neighbours(cls):
    net = build(cls, (3, 16, 16)).double().eval()
    x = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    with torch.no_grad():
        together = net(x)[1]
        alone = torch.cat([net(image[None])[1] for image in x])
    assert torch.allclose(together, alone), "in evaluation mode, an image's logits depend on the others of its batch"


@every_model
def test_initial_weights_follow_the_seed(cls):
    first, again, other = (build(cls, (3, 16, 16), seed=seed).state_dict() for seed in (0, 0, 1))
    drawn_anew = [path for path in first if not torch.equal(first[path], again[path])]
    assert not drawn_anew, "with the same seed these weights differ; draw them from PyTorch's global generator"
    assert any(not torch.equal(first[path], other[path]) for path in first), "all seeds give the same initial weights"


@every_model
def test_every_weight_is_reached_by_the_gradient(cls):
    net = build(cls, (3, 16, 16))
    torch.nn.functional.cross_entropy(net(torch.randn(4, 3, 16, 16))[1], torch.tensor([0, 1, 2, 3])).backward()
    unreached = [path for path, leaf in net.named_parameters() if leaf.grad is None]
    assert not unreached, f"no gradient reaches {', '.join(unreached)}: does forward() use it?"


@every_model
def test_all_that_changes_in_training_is_averaged_or_kept(cls):
    cell = dataclasses.replace(toy_cell(), model=cls())
    net = build(cls, (3, 16, 16))
    before = {k: v.clone() for k, v in net.state_dict().items()}
    net.train()(torch.randn(4, 3, 16, 16))
    paths = Paths.of(net, cell.method())
    changed = {k for k, v in net.state_dict().items() if not torch.equal(v, before[k])}
    counters = {k for k in changed if k.endswith("num_batches_tracked")}
    lost = changed - counters - (paths.shared | paths.own | paths.shared_buffers)
    assert not lost, f"training changes {', '.join(lost)}, which is neither averaged nor kept by the clients"
    for module in net.modules():  # what a step counter would steer
        assert getattr(module, "momentum", 0.1) is not None, "a cumulative average depends on an untracked counter"


@every_model
def test_a_model_trains_in_a_cell(cls, tmp_path):
    record = run_cell(toy_cell(model=cls(), protocol={"rounds": 1, "local_epochs": 1}), how(tmp_path))
    assert record["status"] == "done" or (record["status"] == "skipped" and record["reason"].startswith(cls.name))
