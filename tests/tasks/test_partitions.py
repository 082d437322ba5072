import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.rng import numpy_generator
from fedspan.tasks.partitions import dirichlet
from fedspan.tasks.partitions.dirichlet import Dirichlet
from fedspan.tasks.partitions.iid import IID
from fedspan.tasks.partitions.quantity import Quantity


def labels_of(n, classes, seed=0):
    return np.random.default_rng(seed).integers(0, classes, n)


def split(partition, labels, classes, clients, seed=0):
    return partition.split(labels, classes, clients, numpy_generator(seed, "partition"))


partitions = st.one_of(
    st.just(IID()),
    st.builds(Dirichlet, alpha=st.sampled_from([0.1, 0.5, 5.0, 1000.0]), balanced=st.booleans(), min_size=st.just(1)),
    st.builds(Quantity, alpha=st.sampled_from([0.5, 5.0, 1000.0]), min_size=st.integers(1, 3)),
)


@settings(max_examples=60, deadline=None)
@given(partitions, st.integers(40, 300), st.integers(1, 10), st.integers(1, 6), st.integers(0, 99))
def test_every_image_goes_to_exactly_one_client_and_every_client_gets_one(partition, n, classes, clients, seed):
    labels = labels_of(n, classes, seed)
    try:
        parts = split(partition, labels, classes, clients, seed)
    except UserError as error:  # one class and full skew may have no valid draw
        if "partition.min_size" not in str(error):
            raise
        return
    assert len(parts) == clients
    assert min(map(len, parts)) >= getattr(partition, "min_size", 1)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n))


@settings(max_examples=30, deadline=None)
@given(partitions, st.integers(0, 99))
def test_the_seed_decides(partition, seed):
    labels = labels_of(200, 5)
    first, again, other = (split(partition, labels, 5, 4, s) for s in (seed, seed, seed + 1))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@given(st.integers(1, 500), st.integers(1, 40))
def test_iid_sizes_differ_by_at_most_one(n, clients):
    sizes = [len(part) for part in split(IID(), labels_of(n, 3), 3, clients)]
    assert sum(sizes) == n
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([0.05, 0.1, 0.5]), st.integers(2, 10), st.integers(2, 8), st.integers(0, 99))
def test_a_balanced_client_holds_no_more_than_its_share_and_one_class(alpha, classes, clients, seed):
    labels = labels_of(300, classes, seed)
    parts = split(Dirichlet(alpha, balanced=True, min_size=1), labels, classes, clients, seed)
    # The last client also takes what truncated cut points leave: at most one image of a class.
    bound = len(labels) / clients + np.bincount(labels).max() + classes
    assert max(map(len, parts)) <= bound


def test_without_balancing_one_client_can_hold_nearly_everything():
    sizes = [
        max(map(len, split(Dirichlet(0.05, balanced=balanced, min_size=1), labels_of(400, 8), 8, 4, seed)))
        for balanced in (True, False)
        for seed in range(10)
    ]
    bound = 400 / 4 + np.bincount(labels_of(400, 8)).max() + 8
    assert max(sizes[:10]) <= bound < max(sizes[10:])


def test_small_alpha_is_more_skewed_than_large():
    def skew(alpha):
        labels = labels_of(2000, 10)
        parts = split(Dirichlet(alpha, balanced=False), labels, 10, 5)
        return np.mean([np.bincount(labels[part], minlength=10).max() / len(part) for part in parts])

    assert skew(0.05) > skew(0.5) > skew(1000.0)
    assert skew(1000.0) < 0.15


def test_the_released_procedure_step_by_step():
    """The published loop, written out: proportions, zero for the full, truncated cut points; redraw, then shuffle."""
    labels, clients, alpha = labels_of(120, 4, seed=3), 3, 0.3
    members = [np.flatnonzero(labels == label) for label in range(4)]
    rng = numpy_generator(5, "partition")
    while True:
        proportions = [rng.dirichlet(np.repeat(alpha, clients)) for _ in members]
        sizes, cuts = np.zeros(clients), []
        for mine, shares in zip(members, proportions, strict=True):
            shares = np.array([p * (size < 120 / clients) for p, size in zip(shares, sizes, strict=True)])
            cuts.append((np.cumsum(shares / shares.sum()) * len(mine)).astype(int)[:-1])
            sizes += [len(part) for part in np.split(mine, cuts[-1])]
        if sizes.min() >= 10:
            break
    held = [[] for _ in range(clients)]
    for mine, cut in zip(members, cuts, strict=True):
        held = [h + part.tolist() for h, part in zip(held, np.split(rng.permutation(mine), cut), strict=True)]
    ours = split(Dirichlet(alpha), labels, 4, clients, seed=5)
    assert [sorted(part.tolist()) for part in ours] == [sorted(part) for part in held]


@pytest.mark.parametrize("alpha", [0, -1.0])
def test_alpha_must_be_positive(alpha):
    with pytest.raises(UserError, match=rf"partition\.alpha must be positive .*got {alpha}"):
        Dirichlet(alpha=alpha)


def test_min_size_that_cannot_fit_is_refused_before_any_draw():
    with pytest.raises(UserError, match=r"partition\.min_size=10 for clients=11 needs 110 images, there are 100"):
        split(Dirichlet(), labels_of(100, 3), 3, 11)


@pytest.mark.parametrize("balanced", [True, False])
def test_min_size_that_no_draw_reaches_ends_after_bounded_attempts(monkeypatch, balanced):
    monkeypatch.setattr(dirichlet, "ATTEMPTS", 7)
    draws, draw = [], Dirichlet._draw
    monkeypatch.setattr(Dirichlet, "_draw", lambda self, *rest: draws.append(1) or draw(self, *rest))
    with pytest.raises(UserError) as error:
        split(Dirichlet(alpha=1e-6, balanced=balanced, min_size=25), labels_of(100, 2), 2, 4)
    assert len(draws) == 7
    for named in ("partition.min_size=25", "clients=4", "partition.alpha=1e-06"):
        assert named in str(error.value)


def test_a_thousand_draws_are_attempted():
    with pytest.raises(UserError, match="1000 "):
        split(Dirichlet(alpha=1e-3, min_size=30), labels_of(1437, 10), 10, 30)
