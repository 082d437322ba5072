"""The expected best of k trials against all subsets of them, one by one."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspan.benchmark.records.selection import WORST
from fedspan.benchmark.report.expected_best import BAND, budgets, expected_best

ACCURACIES = st.lists(st.floats(0, 100) | st.sampled_from([50.0, 60.0]), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(ACCURACIES, st.data())
def test_it_is_the_mean_over_all_subsets_and_their_quantiles(accuracies, data):
    k = data.draw(st.integers(1, len(accuracies)))
    [found] = expected_best(accuracies, [k])
    every = sorted(max(subset) for subset in itertools.combinations(accuracies, k))
    assert found.mean == pytest.approx(np.mean(every))
    for share, end in zip(BAND, (found.low, found.high), strict=True):
        assert end == every[math.ceil(share * len(every) - 1e-9) - 1]


@settings(max_examples=40, deadline=None)
@given(ACCURACIES)
def test_more_trials_are_never_worse_and_all_of_them_are_the_best(accuracies):
    found = expected_best(accuracies, range(1, len(accuracies) + 1))
    for name in ("mean", "low", "high"):
        values = [getattr(one, name) for one in found]
        assert all(later >= earlier - 1e-9 for earlier, later in itertools.pairwise(values))
    assert found[-1].mean == pytest.approx(max(accuracies))
    assert (found[-1].low, found[-1].high) == (max(accuracies), max(accuracies))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3000), st.data())
def test_of_thousands_of_trials_it_is_exact_as_of_few(n, data):
    for found in expected_best(range(1, n + 1), [data.draw(st.integers(1, n)), *budgets(n)]):
        k, every = found.k, math.comb(n, found.k)
        assert found.mean == pytest.approx(k * (n + 1) / (k + 1))
        for tenths, end in ((1, found.low), (9, found.high)):
            below, reached = (10 * math.comb(int(rank), k) for rank in (end - 1, end))
            assert below < tenths * every <= reached


def test_there_is_no_mean_where_all_that_is_tried_may_diverge():
    one, two, three = expected_best([60.0, WORST, 50.0, WORST], [1, 2, 3])
    assert math.isnan(one.mean)
    assert math.isnan(two.mean)
    assert three.mean == pytest.approx(np.mean([60, 60, 60, 50]))
    assert (one.low, two.high) == (WORST, 60.0)


@pytest.mark.parametrize(("trials", "ks"), [(0, []), (1, [1]), (2, [1, 2]), (8, [1, 2, 4, 8]), (12, [1, 2, 4, 8, 12])])
def test_budgets_are_powers_of_two_and_the_number_of_trials(trials, ks):
    assert budgets(trials) == ks
