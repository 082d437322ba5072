"""Splits with test images of their own, images with domains, and what is scored on them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspan.benchmark.errors import HookError, UserError
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.rng import numpy_generator
from fedspan.benchmark.running.cell_run import run_cell
from fedspan.benchmark.task import Data, Dataset, Images, Partition, Split, content_digest, grouped
from fedspan.benchmark.training.evaluation import evaluate, score_loaded
from fedspan.benchmark.training.run import participants
from fedspan.benchmark.training.scoring import score_stages
from fedspan.tasks.partitions.domain import Domain
from fedspan.tasks.partitions.iid import IID
from fedspan.tasks.partitions.personal import Personal
from tests.helpers import how, start, toy_cell, trained
from tests.toys import Blobs, LocalHead, Ragged, Scaffold, Sphere, toy

DOMAINS = ("plain", "dark", "noisy")


@toy("dataset", "domain_blobs")
class DomainBlobs(Blobs):
    """Blobs in three domains of different sizes."""

    def load(self, cache):
        data = super().load(cache)

        def placed(images):
            domain = torch.from_numpy(np.random.default_rng(3).choice(3, len(images), p=[0.5, 0.3, 0.2]))
            return Images(images.x // (1 + domain[:, None, None, None]).to(torch.uint8), images.y, domain)

        return Data(
            placed(data.train), placed(data.test), data.classes, data.mean, data.std, data.digest, domains=DOMAINS
        )


@toy("partition", "own_tests")
class OwnTests(Ragged):
    """Ragged clients, each tested on its own stretch of the test images; the last third belongs to nobody."""

    def assign(self, data, clients, rng):
        split = super().assign(data, clients, rng)
        tests = np.array_split(np.arange(2 * len(data.test) // 3), clients)
        return Split(split.train, tuple(tests))


def numbered(n, **more):
    """Return n images that show their own number."""
    return Images(torch.arange(n, dtype=torch.uint8)[:, None, None, None], torch.zeros(n, dtype=torch.int64), **more)


def numbers_of(images, indices):
    return images.x[torch.from_numpy(np.asarray(indices))].flatten().tolist()


# splits ---------------------------------------------------------------------------------------------

index_lists = st.lists(st.integers(0, 29), min_size=3, max_size=30, unique=True).map(
    lambda indices: tuple(np.sort(part) for part in np.array_split(np.array(indices), 3))
)


@settings(max_examples=40, deadline=None)
@given(index_lists, st.one_of(st.none(), index_lists))
def test_applying_a_split_drops_what_nobody_uses_and_every_client_keeps_its_images(train, test):
    data = Data(numbered(30), numbered(30), ("a",), (0.5,), (0.5,), "digest")
    used, applied = Split(train, test).apply(data)
    assert len(used.train) == sum(map(len, train))
    assert len(used.test) == (30 if test is None else sum(map(len, test)))
    for before, after in zip(train, applied.train, strict=True):
        assert numbers_of(used.train, after) == before.tolist()
    for before, after in zip(test or (), applied.test or (), strict=True):
        assert numbers_of(used.test, after) == before.tolist()


@settings(max_examples=40, deadline=None)
@given(index_lists)
def test_a_pooled_split_counts_through_training_and_test_images(indices):
    data = Data(numbered(12), Images(numbered(30).x[12:], numbered(18).y), ("a",), (0.5,), (0.5,), "digest")
    train, test = indices[:2], indices[2:]
    used, applied = Split(train, (test[0], test[0]), pooled=True).apply(data)
    assert [numbers_of(used.train, part) for part in applied.train] == [part.tolist() for part in train]
    assert [numbers_of(used.test, part) for part in applied.test] == [test[0].tolist()] * 2
    assert not set(used.train.x.flatten().tolist()) & set(used.test.x.flatten().tolist())
    assert not applied.pooled


def test_images_that_are_all_used_are_not_copied():
    data = Data(numbered(6), numbered(3), ("a",), (0.5,), (0.5,), "digest")
    used, _ = Split((np.array([0, 2, 4]), np.array([1, 3, 5])), (np.arange(3), np.arange(3))).apply(data)
    assert used.train.x is data.train.x
    assert used.test.x is data.test.x


def test_the_digest_tells_splits_apart():
    one, two, three = np.array([0, 1]), np.array([2]), np.array([3])
    splits = [
        Split((one, two)), Split((one, three)), Split((two, one)), Split((one, two, three)),
        Split((one, two), (one, two)), Split((one, two), (two, one)), Split((one, two), (one, two), pooled=True),
        Split((one, two, one, two)), Split((one,), (two,)), Split((one, two), ()),
    ]  # fmt: skip
    assert len({split.digest for split in splits}) == len(splits)


def test_the_digest_of_training_lists_alone_stays_what_it_was():
    split = Split((np.array([0, 2]), np.array([1])))
    assert split.digest == content_digest(np.array([0, 2]), np.array([1]))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 6)), st.sampled_from([7, 300, 70_000]))
def test_groups_are_the_positions_of_each_value(keys, groups):
    found = grouped(np.array(keys, dtype=np.int64), groups)
    assert len(found) == groups
    for value in range(7):
        assert found[value].tolist() == [i for i, key in enumerate(keys) if key == value]


# what a partition may return ------------------------------------------------------------------------


def returning(split):
    @toy("partition", "made_up")
    class MadeUp(Partition):
        """Returns a given split."""

        def assign(self, data, clients, rng):
            return split

    return MadeUp()


def lists(*parts):
    return tuple(np.array(part, dtype=np.int64) for part in parts)


FINE = lists([0, 1], [2, 3])
WRONG = {
    "nothing": (None, "a Split: it returned None; is a return missing?"),
    "lists alone": (FINE, "a Split: it returned a tuple of 2"),
    "an image twice": (
        Split(lists([0, 1], [1, 2])),
        "every training image at most once: image 1 occurs 2 times, at the clients [0, 1]",
    ),
    "an empty client": (Split(lists([0, 1], [])), "client 1 has none"),
    "too many clients": (
        Split(lists([0], [1], [2])),
        "of training images for each of the 2 clients: it returned a tupl",
    ),
    "an index too large": (Split(lists([0], [94])), "client 1 has 94, and there are 94 images"),
    "a negative index": (Split(lists([0], [-1])), "client 1 has -1, and there are 94 images"),
    "indices with a half": (Split((FINE[0], FINE[1] + 0.5)), "client 1 has an array float64 [2], not integers"),
    "floats": (Split((FINE[0] * 1.0, FINE[1])), "client 0 has an array float64 [2], not integers [n]"),
    "masks": (
        Split((np.arange(94) < 9, np.arange(94) > 8)),
        "client 0 has an array bool [94], not integers [n]; np.flatnonzero makes indices of a mask",
    ),
    "columns": (Split((FINE[0][:, None], FINE[1])), "client 0 has an array int64 [2, 1], not integers [n]"),
    "lists of lists": (Split(([[0], [1, 2]], FINE[1])), "client 0 has a list of 2, not integers [n]"),
    "no indices": (Split((FINE[0], None)), "client 1 has None, not integers [n]"),
    "no test images": (Split(FINE, lists([0], [])), "of test images for each of the 2 clients: client 1 has none"),
    "one test list": (Split(FINE, lists([0])), "of test images for each of the 2 clients: it returned a tuple of 1"),
    "a test index too large": (Split(FINE, lists([0], [30])), "client 1 has 30, and there are 30 images"),
    "a test image that is trained on": (
        Split(FINE, lists([4], [1]), pooled=True),
        "no image for both training and testing: image 1 occurs 2 times, at the clients [0, 1]",
    ),
    "all images pooled and none to test on": (
        Split(FINE, pooled=True),
        "test images too: all images are pooled, but no client has test images",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_split_never_reaches_training(case):
    split, said = WRONG[case]
    with pytest.raises(HookError, match=r"^partition 'made_up', assign \(.*, line \d+\) must return ") as found:
        returning(split).prepare(Blobs().prepare(None), 2, numpy_generator(0, "partition"))
    assert said in str(found.value)


def splitting(split):
    """Return a partition whose `split` is a function of the labels."""

    @toy("partition", "made_up")
    class MadeUp(Partition):
        def split(self, labels, classes, clients, rng):
            return split(labels)

    return MadeUp()


@pytest.mark.parametrize(("parts", "said"), [(None, "None; is a return missing?"), ({0: [1]}, "a dict of 1"), (5, "5")])
def test_a_partition_that_returns_no_lists_is_named(parts, said):
    with pytest.raises(HookError, match=rf"^partition 'made_up', split \(.*\) must return one .*: it returned {said}"):
        splitting(lambda labels: parts).prepare(Blobs().prepare(None), 2, numpy_generator(0, "partition"))


def test_a_partition_cannot_change_the_labels():
    data = Blobs().prepare(None)
    before = data.train.y.clone()
    with pytest.raises(ValueError, match="read-only"):
        splitting(np.ndarray.sort).prepare(data, 2, numpy_generator(0, "partition"))
    assert torch.equal(data.train.y, before)


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, np.uint8])
def test_indices_may_be_any_whole_numbers(kind):
    split = splitting(lambda labels: (kind(part) for part in ([3, 1], [0, 2])))
    prepared = split.prepare(Blobs().prepare(None), 2, numpy_generator(0, "partition"))
    assert [part.tolist() for part in prepared.train] == [[1, 3], [0, 2]]


@pytest.mark.parametrize("split", [Split(FINE, lists([0, 5], [5, 29])), Split(FINE, lists([94], [123]), pooled=True)])
def test_a_right_split_is_handed_on(split):
    prepared = returning(split).prepare(Blobs().prepare(None), 2, numpy_generator(0, "partition"))
    assert prepared.digest == split.digest


# domains of a dataset -------------------------------------------------------------------------------


def dataset_of(**fields):
    @toy("dataset", "given")
    class Given(Dataset):
        """A given dataset."""

        limit: int = 0

        def load(self, cache):
            values = {"train": numbered(6), "test": numbered(6), "classes": ("a",), "digest": "d" * 8}
            return Data(**{**values, "mean": (0.5,), "std": (0.5,), **fields})

    return Given


@pytest.mark.parametrize(
    "fields",
    [
        {"domains": ("x", "y")},
        {"train": numbered(6, domain=torch.tensor([0, 1] * 3))},
        {"train": numbered(6, domain=torch.zeros(6, dtype=torch.int64)), "domains": ("x", "y")},
        {"train": numbered(6, domain=torch.tensor([0, 2] * 3)), "domains": ("x", "y")},
    ],
)
def test_images_come_from_exactly_the_domains_that_are_named(fields):
    with pytest.raises(UserError, match=r"dataset 'given', load .* must return images of its `domains`, and"):
        dataset_of(**fields)().prepare(None)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"train": numbered(6, client=torch.arange(6))},
            r"of its `clients`, and Data\(clients=.*: train.client holds 0, 1, 2, 3, 4, 5, and there are 0 names",
        ),
        (
            {"test": replace(numbered(6), y=torch.ones(6, dtype=torch.int64))},
            "images of its `classes`, and .*: test.y holds 1, and there are 1 names",
        ),
        ({"test": numbered(0)}, "test images: there are none"),
    ],
)
def test_what_images_refer_to_is_there(fields, said):
    with pytest.raises(UserError, match=rf"^dataset 'given', load \(.*, line \d+\) must return .*{said}"):
        dataset_of(**fields)().prepare(None)


@pytest.mark.parametrize("limit", [12, 20, 36, 70])
def test_a_limit_takes_classes_evenly_and_reaches_every_domain(limit):
    y, domain = (torch.from_numpy(a.ravel().copy()) for a in np.meshgrid(np.arange(6), np.arange(4)))
    images = Images(torch.zeros(96, 1, 1, 1, dtype=torch.uint8), y.repeat(4), domain.repeat(4))
    names = tuple("abcdef")
    cut = dataset_of(train=images, test=images, classes=names, domains=tuple("wxyz"))(limit=limit).prepare(None)
    for counts in (torch.bincount(cut.train.y, minlength=6), torch.bincount(cut.train.domain, minlength=4)):
        assert counts.sum() == limit
        assert counts.max() - counts.min() <= 2
    assert cut.domains == tuple("wxyz")


# scores ---------------------------------------------------------------------------------------------


BRIEF = {"rounds": 1, "local_epochs": 1, "lr": 0.01}  # so that some answers are wrong


def answers(run, row=None):
    """Return which test images the loaded global model, or a client's own, gets right."""
    run.trainer.load(run.state, row or run.state.first_row)
    with torch.no_grad():
        logits = run.trainer.net.eval()(run.trainer.data.normalise(run.trainer.data.test.x))[1]
    return (logits.argmax(1) == run.trainer.data.test.y).double()


def test_without_own_test_images_and_domains_nothing_is_added_to_the_scores():
    assert set(score_stages(trained(toy_cell()))["trained"]) == {"accuracy", "loss"}


def test_the_global_model_is_scored_on_each_clients_own_test_images():
    run = trained(toy_cell(partition=OwnTests(), protocol=BRIEF))
    scores = score_stages(run)["trained"]
    right = answers(run)
    assert len(right) == 20
    each = [100 * part.mean().item() for part in torch.tensor_split(right, 6)]
    assert scores["client_accuracy"] == pytest.approx(np.mean(each))
    assert scores["client_accuracy_std"] == pytest.approx(np.std(each))
    assert scores["accuracy"] == pytest.approx(100 * right.mean().item())
    assert np.std(each) > 0


def test_own_models_are_scored_on_their_own_test_images():
    run = trained(toy_cell(LocalHead(), partition=OwnTests(), protocol=BRIEF))
    scores = score_stages(run)["trained"]
    each, losses = [], []
    for k in range(6):
        each.append(100 * torch.tensor_split(answers(run, run.state.row(k)), 6)[k].mean().item())
        losses.append(score_loaded(run.trainer, k).loss)
    assert scores["loss"] == pytest.approx(np.mean(losses)), "however many images each has"
    assert scores["client_accuracy"] == pytest.approx(np.mean(each))
    assert scores["client_accuracy_std"] == pytest.approx(np.std(each))
    assert np.std(each) > 0
    assert scores["accuracy"] is None


@pytest.mark.parametrize("stack", [(), (None, Sphere())], ids=["trained", "calibrated"])
def test_domains_are_scored_one_by_one_and_their_plain_mean(stack):
    run = trained(toy_cell(*stack, dataset=DomainBlobs(), partition=IID(), protocol=BRIEF))
    scores = score_stages(run)["trained"]
    right, domain = answers(run), run.trainer.data.test.domain
    each = [100 * right[domain == d].mean().item() for d in range(3)]
    assert [scores[f"domain_accuracy.{name}"] for name in DOMAINS] == pytest.approx(each)
    assert scores["domain_accuracy"] == pytest.approx(np.mean(each))
    assert scores["domain_accuracy"] != pytest.approx(scores["accuracy"])
    assert all("domain_accuracy" in stage for name, stage in score_stages(run).items() if name != "best")


def test_with_one_domain_per_client_the_mean_over_domains_is_that_over_clients():
    for algorithm in (None, LocalHead()):
        run = trained(toy_cell(algorithm, dataset=DomainBlobs(), partition=Domain(), clients=3, protocol=BRIEF))
        scores = score_stages(run)["trained"]
        assert scores["domain_accuracy"] == pytest.approx(scores["client_accuracy"])


def test_own_models_without_own_test_images_count_in_every_domain():
    run = trained(toy_cell(LocalHead(), dataset=DomainBlobs(), partition=Ragged(), protocol=BRIEF))
    scores, domain = score_stages(run)["trained"], run.trainer.data.test.domain
    right = torch.stack([answers(run, run.state.row(client)) for client in range(6)])
    assert scores["domain_accuracy.dark"] == pytest.approx(100 * right[:, domain == 1].mean().item())


def test_no_held_back_image_is_trained_on_or_calibrated_with():
    run = start(toy_cell(partition=Personal(alpha=1.0), dataset=Blobs(train=120, test=60), clients=4))
    data = run.trainer.data
    assert len(data.train) + len(data.test) == 180
    assert sum(map(len, data.tests)) == len(data.test)
    trained_on = {image.numpy().tobytes() for client in range(4) for image in data.train.x[data.indices[client]]}
    assert trained_on.isdisjoint(image.numpy().tobytes() for image in data.test.x)


def test_a_record_keeps_the_scores_and_the_digest_of_both_lists(tmp_path):
    cell = toy_cell(dataset=DomainBlobs(), partition=Domain(), clients=3)
    record = run_cell(cell, how(tmp_path))
    assert Results(how(tmp_path).results).read(cell.key) == record
    assert {f"domain_accuracy.{name}" for name in DOMAINS} < set(record["scores"]["trained"])
    split = cell.partition.prepare(cell.dataset.prepare(None), 3, numpy_generator(0, "partition"))
    assert record["provenance"]["partition_digest"] == split.digest != Split(split.train).digest


def test_scores_of_part_of_the_test_set():
    run = trained(toy_cell(protocol=BRIEF))
    part = run.trainer.data.test.take(torch.tensor([3, 4, 20]))
    run.trainer.load(run.state, run.state.first_row)
    assert torch.equal(evaluate(run.trainer, part).right, answers(run)[[3, 4, 20]].bool())


# many clients ---------------------------------------------------------------------------------------


def test_ten_thousand_clients_take_part_a_few_at_a_time_and_leave_nothing_behind():
    many = {
        "dataset": Blobs(train=20_000, test=30), "partition": IID(), "clients": 10_000, "participation": 0.001,
        "protocol": {"rounds": 2, "local_epochs": 1},
    }  # fmt: skip
    run = trained(toy_cell(**many))
    assert run.curve["round"] == [1, 2]
    assert run.meter.visits == 20
    assert set(run.state.pack()) == set(trained(toy_cell()).state.pack())
    stateful = trained(toy_cell(Scaffold(), **many))
    taken = {client for round in range(2) for client in participants(10_000, 0.001, 0, round)}
    assert set(stateful.state.rows) == taken


def test_a_partition_that_draws_from_a_global_generator_is_refused():
    class Careless(IID):
        def split(self, labels, classes, clients, rng):
            return np.array_split(np.random.permutation(len(labels)), clients)  # noqa: NPY002

    data = Blobs().load(Path())
    with pytest.raises(
        HookError, match=r"partition 'iid', split \(.*\) draws from a global random .*; draw from `rng`"
    ):
        Careless().prepare(data, 3, np.random.default_rng(0))
