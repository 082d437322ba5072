"""Quantity, pathological, domain and personal partitions, and the statistics of the Dirichlet one."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.rng import numpy_generator
from fedspan.benchmark.task import Data, Images
from fedspan.tasks.partitions.dirichlet import Dirichlet
from fedspan.tasks.partitions.domain import Domain
from fedspan.tasks.partitions.iid import IID
from fedspan.tasks.partitions.pathological import Pathological
from fedspan.tasks.partitions.personal import Personal
from fedspan.tasks.partitions.quantity import Quantity

quickly = settings(max_examples=50, deadline=None)


def images_of(labels, domain=None):
    n = len(labels)
    where = None if domain is None else torch.as_tensor(np.array(domain), dtype=torch.int64)
    return Images(torch.zeros(n, 1, 1, 1, dtype=torch.uint8), torch.as_tensor(np.array(labels)), where)


def data_of(train, test, classes, domains=()):
    """Return images without pixels; `train` and `test` are labels, or (labels, domain)."""
    splits = (images_of(*part) if isinstance(part, tuple) else images_of(part) for part in (train, test))
    return Data(*splits, tuple(map(str, range(classes))), (0.5,), (0.5,), "digest", tuple(domains))


def labels_of(n, classes, seed=0):
    return np.random.default_rng(seed).permutation(np.arange(n) % classes)


def prepare(partition, data, clients, seed=0):
    return partition.prepare(data, clients, numpy_generator(seed, "partition"))


def same(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


# Dirichlet ----------------------------------------------------------------------------------------

CIFAR10, CIFAR100, TINY_IMAGENET = (50_000, 10), (50_000, 100), (100_000, 200)
# Over 100 draws for 10 clients: coefficient of variation of client sizes, largest client, mean classes per client;
# of the released code's procedure and of the plain form. These were found by an independent implementation.
STATISTICS = {
    (CIFAR10, 0.05): ((0.50, 9991, 4.0), (0.73, 19936, 4.7)),
    (CIFAR10, 0.1): ((0.44, 9966, 5.5), (0.68, 18804, 6.4)),
    (CIFAR10, 0.5): ((0.25, 9530, 8.7), (0.39, 13464, 9.8)),
    (CIFAR100, 0.05): ((0.08, 5497, 37.3), (0.24, 9641, 40.0)),
    (TINY_IMAGENET, 0.05): ((0.05, 10501, 75.8), (0.17, 15750, 80.0)),
}


@pytest.mark.parametrize("balanced", [True, False], ids=["released", "plain"])
@pytest.mark.parametrize(("dataset", "alpha"), STATISTICS, ids=str)
def test_dirichlet_clients_are_as_uneven_as_those_of_the_published_procedure(dataset, alpha, balanced):
    (n, classes), draws = dataset, 100
    cv, largest, held = STATISTICS[dataset, alpha][not balanced]
    labels = np.arange(n) % classes
    partition, found = Dirichlet(alpha=alpha, balanced=balanced), []
    for seed in range(draws):
        parts = partition.split(labels, classes, 10, numpy_generator(seed, "partition"))
        sizes = np.array([len(part) for part in parts])
        found.append((sizes.std() / sizes.mean(), sizes.max(), np.mean([np.unique(labels[p]).size for p in parts])))
    variations, maxima, class_counts = np.array(found).T
    # Both numbers are means of 100 draws, and the printed one is rounded to two digits.
    error = np.sqrt(2) * variations.std() / np.sqrt(draws)
    assert variations.mean() == pytest.approx(cv, abs=4 * error + 0.005)
    assert class_counts.mean() == pytest.approx(held, abs=0.15)
    assert maxima.max() == pytest.approx(largest, rel=0.12)
    if balanced:
        assert maxima.max() <= n / 10 + n / classes + classes


def test_a_client_is_as_likely_to_hold_much_as_any_other():
    labels = labels_of(2000, 10)
    sizes = np.array(
        [
            [len(part) for part in Dirichlet(0.3, False).split(labels, 10, 5, numpy_generator(seed, "partition"))]
            for seed in range(200)
        ]
    )
    spread = sizes.std() / np.sqrt(len(sizes))
    np.testing.assert_allclose(sizes.mean(0), 400, atol=4.5 * spread)


# quantity -------------------------------------------------------------------------------------------


def test_the_released_cut_by_quantity_step_by_step():
    """The published loop, written out: proportions until the smallest is large enough, truncated cut points."""
    n, clients, alpha, min_size = 500, 6, 0.7, 10
    rng, sizes = numpy_generator(2, "partition"), [0]
    while min(sizes) < min_size:
        cuts = (np.cumsum(rng.dirichlet(np.repeat(alpha, clients))) * n).astype(int)[:-1]
        sizes = np.diff([0, *cuts, n])
    expected = np.split(rng.permutation(n), cuts)
    found = Quantity(alpha, min_size).split(labels_of(n, 4), 4, clients, numpy_generator(2, "partition"))
    assert [part.tolist() for part in found] == [sorted(part.tolist()) for part in expected]


def test_sizes_vary_as_the_shares_of_a_dirichlet_distribution_do():
    n, clients, alpha, draws = 20_000, 5, 4.0, 400
    labels = labels_of(n, 10)
    shares = np.array(
        [
            [len(part) / n for part in Quantity(alpha).split(labels, 10, clients, numpy_generator(seed, "partition"))]
            for seed in range(draws)
        ]
    )
    variance = (clients - 1) / (clients**2 * (clients * alpha + 1))
    assert shares.mean(0) == pytest.approx(1 / clients, abs=4.5 * np.sqrt(variance / draws))
    assert shares.var() == pytest.approx(variance, rel=0.15)


def test_every_client_holds_the_classes_in_the_proportions_of_all_images():
    labels = np.sort(labels_of(20_000, 4))
    for part in Quantity(5.0).split(labels, 4, 5, numpy_generator(0, "partition")):
        of_class = np.bincount(labels[part], minlength=4) / len(part)
        assert of_class == pytest.approx(0.25, abs=4.5 * np.sqrt(0.25 * 0.75 / len(part)))


def test_a_cut_by_quantity_that_cannot_be_drawn_is_refused():
    with pytest.raises(UserError, match=r"partition\.alpha must be positive .*got 0"):
        Quantity(alpha=0.0)
    with pytest.raises(UserError, match=r"no draw of 1000 gave each of clients=20 .*partition\.min_size=10"):
        prepare(Quantity(0.01), data_of(labels_of(400, 4), [0], 4), 20)


# pathological ---------------------------------------------------------------------------------------


@quickly
@given(st.data(), st.integers(1, 12), st.integers(1, 25), st.integers(0, 99))
def test_every_client_holds_its_classes_and_every_class_is_held_evenly(draw, classes, clients, seed):
    each = draw.draw(st.integers(1, classes), label="classes_per_client")
    labels = labels_of(draw.draw(st.integers(classes * clients, 400), label="images"), classes, seed)
    data, partition = data_of(labels, labels[:1], classes), Pathological(each)
    if clients * each < classes:
        with pytest.raises(UserError, match=f"clients={clients} with .* of {classes} classes at most; raise one"):
            prepare(partition, data, clients, seed)
        return
    parts = prepare(partition, data, clients, seed).train
    counts = np.array([np.bincount(labels[part], minlength=classes) for part in parts])
    assert np.sort(np.concatenate(parts)).tolist() == list(range(len(labels)))
    assert ((counts > 0).sum(1) == each).all()
    holders = (counts > 0).sum(0)
    assert holders.min() >= 1
    assert holders.max() - holders.min() <= 1
    for of_class in counts.T:
        shares = of_class[of_class > 0]
        assert shares.max() - shares.min() <= 1


def test_with_all_classes_pathological_is_even_in_every_class():
    labels = labels_of(600, 6)
    parts = prepare(Pathological(6), data_of(labels, [0], 6), 5).train
    assert {tuple(np.bincount(labels[part])) for part in parts} == {(20,) * 6}


def test_who_holds_which_class_and_which_images_are_drawn():
    labels = labels_of(600, 6)
    held = [
        [tuple(np.unique(labels[part])) for part in prepare(Pathological(2), data_of(labels, [0], 6), 6, seed).train]
        for seed in range(20)
    ]
    assert len({tuple(each) for each in held}) > 15
    first, second = (prepare(Pathological(6), data_of(labels, [0], 6), 4, seed) for seed in (0, 1))
    assert not same(first.train, second.train)


def test_a_client_gets_images_from_all_over_its_class():
    for part in prepare(Pathological(1), data_of([0] * 600, [0], 1), 3).train:
        assert 0.35 < np.mean(part < 300) < 0.65


def test_more_classes_per_client_than_classes_is_refused():
    with pytest.raises(UserError, match=r"partition\.classes_per_client=4 is more than the 3 classes; lower it"):
        prepare(Pathological(4), data_of(labels_of(30, 3), [0], 3), 2)


def test_a_class_too_small_for_its_holders_is_named():
    labels = np.array([0] * 20 + [1] * 3)
    with pytest.raises(UserError, match=r"class 1 has 3 images for the 4 clients .* dataset\.limit"):
        prepare(Pathological(2), data_of(labels, [0], 2), 4)


@pytest.mark.parametrize("each", [0, -2])
def test_a_client_holds_at_least_one_class(each):
    with pytest.raises(UserError, match=rf"partition\.classes_per_client must be at least 1, got {each}"):
        Pathological(each)


# domain ---------------------------------------------------------------------------------------------

domain_lists = st.lists(st.integers(0, 2), min_size=1, max_size=60).map(lambda more: [0, 1, 2, *more])
NAMES = ("amazon", "caltech", "webcam")


def with_domains(train, test):
    return data_of((np.zeros(len(train), int), train), (np.zeros(len(test), int), test), 1, NAMES)


@quickly
@given(domain_lists, domain_lists)
def test_each_client_holds_one_domain_and_is_tested_on_it(train, test):
    split = prepare(Domain(), with_domains(train, test), 3)
    for client in range(3):
        assert split.train[client].tolist() == [i for i, domain in enumerate(train) if domain == client]
        assert split.test[client].tolist() == [i for i, domain in enumerate(test) if domain == client]


@quickly
@given(domain_lists, st.sampled_from([0.05, 0.5, 0.8, 1.0]), st.integers(0, 9))
def test_subsampled_domains_have_that_share_of_the_smallest(train, share, seed):
    data = with_domains(train, [0, 1, 2])
    keep = int(share * np.bincount(train).min())
    if keep == 0:
        with pytest.raises(UserError, match=rf"partition\.subsample={share} of the smallest domain, .* raise it"):
            prepare(Domain(share), data, 3, seed)
        return
    split, whole = prepare(Domain(share), data, 3, seed), prepare(Domain(), data, 3)
    assert [len(part) for part in split.train] == [keep] * 3
    assert all(set(part) <= set(mine) for part, mine in zip(split.train, whole.train, strict=True))
    assert same(split.test, whole.test)
    assert same(split.train, prepare(Domain(share), data, 3, seed).train)


def test_the_seed_decides_which_images_are_kept_and_nothing_else():
    data = with_domains([0, 1, 2] * 40, [0, 1, 2])
    assert len({prepare(Domain(0.5), data, 3, seed).digest for seed in range(5)}) == 5
    assert len({prepare(Domain(), data, 3, seed).digest for seed in range(5)}) == 1


@pytest.mark.parametrize("clients", [1, 2, 4])
def test_one_client_for_each_domain_no_fewer_and_no_more(clients):
    with pytest.raises(UserError, match=rf"3 domains \(amazon, .*\), got clients={clients}; set clients=3"):
        prepare(Domain(), with_domains([0, 1, 2] * 4, [0, 1, 2]), clients)


def test_a_dataset_without_domains_is_refused():
    with pytest.raises(UserError, match="partition=domain needs a dataset with domains"):
        prepare(Domain(), data_of([0, 1], [0, 1], 2), 2)


def test_a_domain_without_images_is_named():
    with pytest.raises(UserError, match=r"domain 'webcam' has 4 training and 0 test images; raise dataset\.limit"):
        prepare(Domain(), with_domains([0, 1, 2] * 4, [0, 1]), 3)


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_the_share_of_the_smallest_domain_lies_in_0_to_1(share):
    with pytest.raises(UserError, match=r"partition\.subsample must lie in \[0, 1\]"):
        Domain(share)


# personal -------------------------------------------------------------------------------------------


@quickly
@given(
    st.integers(60, 200), st.integers(10, 60), st.integers(1, 5), st.sampled_from([0.05, 0.15, 0.5]), st.integers(0, 9)
)
def test_training_and_test_images_are_merged_and_each_client_keeps_its_share_back(trains, tests, clients, share, seed):
    data = data_of(labels_of(trains, 3), labels_of(tests, 3), 3)
    split = prepare(Personal(alpha=2.0, min_size=4, held_back=share), data, clients, seed)
    assert split.pooled
    assert np.sort(np.concatenate(split.train + split.test)).tolist() == list(range(trains + tests))
    for mine, own_test in zip(split.train, split.test, strict=True):
        n = len(mine) + len(own_test)
        assert n >= 4
        assert len(own_test) == max(1, round(share * n))


def test_held_back_images_are_drawn_from_all_that_a_client_has():
    data = data_of(labels_of(600, 3), labels_of(600, 3), 3)
    split = prepare(Personal(alpha=100.0, held_back=0.5), data, 2)
    for part in (*split.train, *split.test):
        assert 0.4 < np.mean(part < 600) < 0.6
        assert np.bincount(labels_of(600, 3)[part % 600]).min() > 60


def test_personal_is_dirichlet_over_all_images():
    train, test = labels_of(300, 3), labels_of(100, 3)
    split = prepare(Personal(alpha=0.4, balanced=True), data_of(train, test, 3), 4, seed=3)
    both = np.concatenate([train, test])
    parts = Dirichlet(alpha=0.4, balanced=True).split(both, 3, 4, numpy_generator(3, "partition"))
    assert same([np.sort(np.concatenate(pair)) for pair in zip(split.train, split.test, strict=True)], parts)


@pytest.mark.parametrize("share", [0, 1, -0.2, 15])
def test_a_client_keeps_some_images_back_and_some_to_train_on(share):
    with pytest.raises(UserError, match=rf"partition\.held_back must lie in \(0, 1\), got {share}"):
        Personal(held_back=share)


def test_a_client_needs_two_images_to_train_and_test():
    with pytest.raises(UserError, match=r"partition\.min_size must be at least 2"):
        Personal(min_size=1)


# all ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", [IID(), Dirichlet(0.5, min_size=1), Pathological(2), Personal(0.5, min_size=2)])
def test_ten_thousand_clients(partition):
    labels = labels_of(200_000, 20)
    split = prepare(partition, data_of(labels, labels[:20_000], 20), 10_000)
    assert len(split.train) == 10_000
    assert min(map(len, split.train)) >= 1
    taken = np.concatenate(split.train + (split.test or ()))
    assert len(np.unique(taken)) == len(taken) == (220_000 if split.pooled else 200_000)


def test_a_client_that_keeps_nearly_all_back_still_trains_on_an_image():
    split = prepare(Personal(alpha=100.0, min_size=2, held_back=0.99), data_of(labels_of(12, 3), labels_of(4, 3), 3), 4)
    assert [len(part) for part in split.train] == [1] * 4
