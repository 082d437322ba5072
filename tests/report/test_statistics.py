import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedspan.benchmark.records.model import settled
from fedspan.benchmark.report.statistics import (
    Difference,
    Withheld,
    average_ranks,
    difference,
    diverged_score,
    holm,
    mean_of,
    united,
    win_rates,
)


def scores(values, first_seed=0):
    """Return ``{task: {seed: value}}`` of an array [tasks, seeds]."""
    return {task: dict(enumerate(map(float, row), first_seed)) for task, row in enumerate(np.asarray(values))}


def drawn(seed, *shape):
    return np.random.default_rng(seed).normal(80, 3, shape)


@given(st.lists(st.dictionaries(st.integers(0, 6), st.integers(0, 6)), max_size=3))
def test_united_maps_send_exactly_the_connected_tasks_to_one(maps):
    found = united(*maps)
    pairs = [pair for one in maps for pair in one.items()]
    assert all(found.get(other, other) == found.get(first, first) for other, first in pairs)
    classes = {task: {task} for task in range(7)}
    for other, first in pairs:
        joined = classes[other] | classes[first]
        classes |= dict.fromkeys(joined, joined)
    assert len({found.get(task, task) for task in range(7)}) == len({frozenset(one) for one in classes.values()})


@pytest.mark.parametrize("shape", [(6, 1), (3, 3), (1, 5)])
def test_a_difference_changes_its_sign_with_the_order_and_keeps_its_place_under_a_shift(shape):
    one, other = drawn(1, *shape), drawn(2, *shape)
    there, back = difference(scores(one), scores(other)), difference(scores(other), scores(one))
    assert there.mean == pytest.approx((one - other).mean())
    assert there.low < there.mean < there.high
    assert back.mean == pytest.approx(-there.mean)
    moved = difference(scores(one + 5), scores(other + 5))
    assert [moved.mean, moved.low, moved.high] == pytest.approx([there.mean, there.low, there.high])
    better = difference(scores(one + 100), scores(other))
    assert (better.sign, difference(scores(one), scores(one)).sign) == (1, 0)


def test_only_pairs_of_the_same_task_and_seed_are_compared():
    one, other = drawn(1, 3, 3), drawn(2, 3, 3)
    alone = scores(one) | {"elsewhere": {0: 1e6}}
    assert difference(alone, scores(other)) == difference(scores(one), scores(other))
    assert difference(scores(one), scores(other, first_seed=7)) is None


@pytest.mark.parametrize(("tasks", "seeds"), [(1, 5), (2, 3), (6, 3)])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(tasks, seeds):
    generator, times = np.random.default_rng(5), 300
    zero = scores(np.zeros((tasks, seeds)))
    held = 0
    for _ in range(times):
        effects = generator.normal(0, 1, (tasks, 1)) * (tasks >= 5)  # of the tasks, where they count as a sample
        found = difference(scores(effects + generator.normal(0, 1, (tasks, seeds))), zero)
        held += found.low <= 0 <= found.high
    assert 0.91 <= held / times <= 0.99


@pytest.mark.parametrize(
    ("gaps", "larger"),
    [
        ([[3.0, 4.0, 5.0, 4.5], [3.0, 4.2, 5.0, 4.0]], "combined"),
        ([[0.9, 1.0, 1.1, 1.2], [-1.0, 1.0, 9.0, 4.0]], "of the mean"),
    ],
)
def test_the_interval_is_that_of_welch_and_the_test_the_stricter_of_welchs_and_stouffers(gaps, larger):
    gaps = np.array(gaps)
    variances = gaps.var(1, ddof=1) / 4
    freedom, error = variances.sum() ** 2 / (variances**2 / 3).sum(), math.sqrt(variances.sum()) / 2
    wide = stats.t.ppf(0.975, freedom) * error
    found = difference(scores(gaps), scores(np.zeros((2, 4))))
    assert (found.low, found.high) == pytest.approx((gaps.mean() - wide, gaps.mean() + wide))
    sides = [stats.ttest_1samp(task, 0, alternative="greater").pvalue for task in gaps]
    p = {
        "combined": 2 * stats.combine_pvalues(sides, method="stouffer").pvalue,
        "of the mean": 2 * stats.t.sf(gaps.mean() / error, freedom),
    }
    assert max(p, key=p.get) == larger
    assert found.p == pytest.approx(p[larger])


def test_a_task_counts_once_however_many_seeds_it_has():
    gaps = [[3.0, 4.0, 5.0], [0.0, 1.0, 0.5, -0.5, 0.2, 0.4, -0.3]]
    one = {task: dict(enumerate(values)) for task, values in enumerate(gaps)}
    found = difference(one, {task: dict.fromkeys(runs, 0.0) for task, runs in one.items()})
    own = np.array([stats.sem(values) ** 2 for values in gaps])
    freedom = own.sum() ** 2 / (own**2 / [2, 6]).sum()
    assert found.mean == pytest.approx(np.mean([np.mean(values) for values in gaps]))
    wide = stats.t.ppf(0.975, freedom) * math.sqrt(own.sum()) / 2
    assert (found.high - found.low) / 2 == pytest.approx(wide)


def test_a_counted_score_that_varies_over_seeds_is_not_certain():
    varying, fixed = drawn(1, 2, 4), np.full((2, 4), 80.0)
    size = difference(scores(varying), scores(fixed), counted=True)
    assert size.low < size.mean < size.high
    half = np.concatenate([varying[:1], fixed[:1]])
    assert isinstance(difference(scores(half), scores(fixed - 1), counted=True), Withheld), "one task is not certain"


NEEDS = {1: "5 seeds on one task", 2: "5 tasks, or 3 seeds per task and at least 4 more pairs than tasks"}


@pytest.mark.parametrize(
    ("tasks", "seeds", "enough"),
    [(1, 4, False), (1, 5, True), (2, 2, False), (2, 3, True), (4, 1, False), (5, 1, True)],
)
def test_an_interval_needs_five_tasks_or_three_seeds_a_task_and_four_more_pairs_than_tasks(tasks, seeds, enough):
    found = difference(scores(drawn(1, tasks, seeds)), scores(drawn(2, tasks, seeds)))
    assert isinstance(found, Difference if enough else Withheld)
    if not enough:
        assert found.reason.endswith(f" are too few; an interval needs {NEEDS[min(tasks, 2)]}")


def test_over_many_tasks_interval_and_test_are_those_of_the_tasks_means():
    one, other = drawn(1, 6, 2), drawn(2, 6, 2)
    expected = stats.ttest_rel(one.mean(1), other.mean(1))
    found = difference(scores(one), scores(other))
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval()))


def test_differences_that_do_not_scatter_decide_nothing_unless_the_scores_are_constant():
    one = drawn(1, 2, 3)
    assert "their variance cannot be estimated" in difference(scores(one + 1), scores(one)).reason
    assert "their variance cannot be estimated" in difference(scores(drawn(1, 6, 2) + 1), scores(drawn(1, 6, 2))).reason
    size = difference(scores(np.full((1, 3), 8.0)), scores(np.full((1, 3), 4.0)), counted=True)
    assert (size.mean, size.p, size.sign) == (4, 0, 1), "bytes, say, which do not depend on the seed"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=4), st.integers(2, 5))
def test_scores_that_agree_on_all_seeds_are_certain_only_where_they_are_counted(tasks, seeds):
    """Accuracies on few images agree by chance, so they decide nothing; bytes do not depend on the seed."""
    one, other = (scores([[float(pair[row])] * seeds for pair in tasks]) for row in (0, 1))
    assert difference(one, other).sign == 0
    size = difference(one, other, counted=True)
    assert (size.low, size.high, size.p) == (size.mean, size.mean, float(size.mean == 0))
    assert size.mean == pytest.approx(np.mean([pair[0] - pair[1] for pair in tasks]))


def decided_by_divergence(gap):
    """Return the reason and the sign of a difference that has no mean."""
    assert isinstance(gap, Withheld)
    assert math.isnan(gap.mean)
    return gap.reason, gap.sign


@pytest.mark.parametrize("tasks", [2, 6])
def test_a_row_with_diverged_runs_is_behind_however_good_the_others_are(tasks):
    good, bad = scores(drawn(1, tasks, 3) + 50), scores(drawn(2, tasks, 3))
    good[0] = {0: 99.0, 1: diverged_score(+1), 2: diverged_score(+1)}
    assert decided_by_divergence(difference(good, bad)) == ("2 runs diverged on the tasks that both have", -1)
    assert difference(bad, good).sign == +1
    bad[1][0] = diverged_score(+1)
    assert difference(bad, good).sign == 0, "where both have diverged runs nothing is decided"
    assert isinstance(difference(good, {1: {0: 1.0, 1: 2.0, 2: 3.0}}), Withheld | Difference)
    assert "diverged" not in str(difference(good, {1: {0: 1.0, 1: 2.0, 2: 3.0}})), "it diverged on another task"


def test_a_diverged_run_counts_where_the_other_row_ran_that_seed():
    """Who runs more seeds than another risks nothing by it."""
    good, more = {0: {0: 60.0, 1: 61.0, 2: 63.0}}, {0: {0: 50.0, 1: 52.0, 2: 53.0, 3: diverged_score(+1)}}
    assert difference(good, more) == difference(good, {0: {seed: more[0][seed] for seed in good[0]}})
    found = difference({0: good[0] | {3: 62.0}}, more)
    assert decided_by_divergence(found) == ("1 run diverged on the tasks that both have", +1)


def test_a_diverged_run_of_a_loss_is_worse_too():
    small, large = {0: {0: 0.1, 1: diverged_score(-1), 2: 0.1}}, {0: {0: 5.0, 1: 5.0, 2: 6.0}}
    assert difference(small, large, better=-1).sign == +1, "its loss is larger"
    assert average_ranks([small, large], -1)[0] == pytest.approx([4 / 3, 5 / 3])
    assert win_rates([small, large], -1) == pytest.approx([200 / 3, 100 / 3])
    assert mean_of(small[0].values()) == math.inf


def test_diverged_runs_share_the_last_rank_and_lose_each_comparison():
    rows = [
        {0: {0: 90.0, 1: diverged_score(+1), 2: diverged_score(+1)}},
        {0: {0: 80.0, 1: 40.0, 2: diverged_score(+1)}},
        {0: {0: 1.0, 1: 2.0, 2: 3.0}},
    ]
    assert average_ranks(rows, +1) == (pytest.approx([(1 + 3 + 2.5) / 3, (2 + 1 + 2.5) / 3, (3 + 2 + 1) / 3]), 3)
    assert win_rates(rows, +1) == pytest.approx([100 * 2.5 / 6, 100 * 3.5 / 6, 100 * 3 / 6])


def test_equal_means_are_equal_whatever_their_last_bits():
    one, other = [37.34, 35.88, 38.16], [37.26, 35.92, 38.20]
    assert np.mean(one) != np.mean(other), "as floating-point numbers"
    assert settled(mean_of(one)) == settled(mean_of(other))
    assert difference(scores([one] * 2), scores([other] * 2)).mean == 0
    assert math.fsum(a - b for a, b in zip([0.3, 0.3, 0.3], [0.1, 0.2, 0.6], strict=True)) != 0
    assert difference(scores([[0.3] * 3] * 2), scores([[0.1, 0.2, 0.6]] * 2)).mean == 0


def test_equal_scores_tie_whatever_their_last_bits():
    one, other = [{0: {0: mean}} for mean in map(np.mean, ([37.34, 35.88, 38.16], [37.26, 35.92, 38.20]))]
    assert one != other
    assert win_rates([one, other], +1) == [50, 50]
    assert average_ranks([one, other], +1)[0] == [1.5, 1.5]


def test_runs_that_are_equal_show_equal_rows_only_where_there_are_enough_of_them():
    """FedBN and FedAvg on a net without BatchNorm: one run of each says nothing of the rows beside them."""
    assert isinstance(difference(scores([[50.0]] * 3), scores([[50.0]] * 3)), Withheld)
    equal = difference(scores([[50.0, 51.0, 52.0]] * 2), scores([[50.0, 51.0, 52.0]] * 2))
    assert (equal.mean, equal.low, equal.high, equal.p) == (0.0, 0.0, 0.0, 1.0)


def test_average_ranks_are_those_over_the_pairs_that_all_rows_have():
    rows = [scores([[3, 5], [1, 1]]), scores([[4, 6], [1, 1]]), scores([[0, 0], [9, 9]]) | {2: {0: 7.0}}]
    assert average_ranks(rows, +1) == (pytest.approx([2.25, 1.75, 2]), 4)
    assert average_ranks(rows, -1)[0] == pytest.approx([4 - rank for rank in average_ranks(rows, +1)[0]])
    assert average_ranks([*rows, {}], +1)[1] == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(1, 4), st.integers(1, 3), st.integers(0, 9))
def test_ranks_and_wins_share_out_what_there_is(rows, tasks, seeds, draw):
    many = [scores(values) for values in np.random.default_rng(draw).integers(0, 4, (rows, tasks, seeds))]
    many[0][0][0] = diverged_score(+1)
    assert sum(average_ranks(many, +1)[0]) == pytest.approx(rows * (rows + 1) / 2)
    assert np.mean(win_rates(many, +1)) == pytest.approx(50)
    assert win_rates(many, -1) == pytest.approx([100 - rate for rate in win_rates(many, +1)])


def test_a_win_needs_a_common_pair():
    assert win_rates([scores([[2]]), scores([[1]])], +1) == [100, 0]
    assert all(map(math.isnan, win_rates([scores([[2]]), scores([[1]], first_seed=1)], +1)))


def test_holm_asks_the_smallest_chance_for_most():
    assert holm([0.04, 0.01, 0.03]) == [False, True, False]
    assert holm([0.016, 0.024, 0.049]) == [True, True, True]
    assert holm([0.017, 0.02, 0.02]) == [False] * 3
    assert holm([]) == []


def test_where_the_combined_test_points_away_from_the_mean_nothing_is_unlikely():
    """The first task is sure of +1, the second lost more, by chance: their mean is negative, Stouffer's z positive."""
    found = difference(scores([[0.9, 1.0, 1.1], [-10.0, -3.0, 4.0]]), scores(np.zeros((2, 3))))
    assert (found.mean, found.p) == (pytest.approx(-1), 1.0)


def test_every_task_needs_its_seeds_however_many_another_one_has():
    one, other = ({0: {0: a, 1: b}, 1: dict(enumerate(c))} for a, b, *c in (drawn(1, 7), drawn(2, 7)))
    found = difference(one, other)
    assert isinstance(found, Withheld)
    assert "7 pairs of runs on 2 tasks are too few" in found.reason
