"""Statistics for few seeds. Every result names its assumptions; where data are too few it is `Withheld`.

Scores are ``{task: {seed: value}}`` of one row. Two rows are compared on the (task, seed) pairs that both have: a seed
fixes partition, initial weights and batches, so the two runs of a pair differ only in the method.

A diverged run is worse than any score: its score (`diverged_score`) is minus infinity, or plus infinity where less is
better. Ranks and wins count it as a loss, the row's mean on that task is withheld, and of two rows the one with
diverged runs on their common tasks is behind the one without.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from scipy import special

from fedspan.benchmark.names import counted_as
from fedspan.benchmark.records.model import DIGITS, settled

SeedScores = Mapping[Any, Mapping[int, float]]
T = TypeVar("T")

LEVEL = 0.05
MANY_TASKS = 5  # from this number on, tasks count as a sample of tasks
LEAST_SEEDS = 3  # per task, to estimate the variance over seeds
LEAST_FREEDOM = 4  # pairs minus tasks


@dataclass(frozen=True)
class Withheld:
    """A statistic that the data do not support, and the reason.

    `sign` is +1 or -1 if one of two rows is ahead nevertheless, because only the other has diverged runs. `mean` is the
    difference, with too few runs to estimate its variance: it orders rows but decides nothing. It is NaN if runs
    diverged.
    """

    reason: str
    sign: int = 0
    mean: float = math.nan

    @property
    def flipped(self) -> Withheld:
        """The same for the second row minus the first."""
        return replace(self, sign=-self.sign, mean=0.0 - self.mean)


@dataclass(frozen=True)
class Difference:
    """The mean over tasks of one row minus another, with a 95% interval, in the unit of the scores.

    `p` is the two-sided p-value: the probability of a difference at least as large if the rows are equal.
    """

    mean: float
    low: float
    high: float
    p: float
    tasks: int
    pairs: int
    assumes: str

    @property
    def sign(self) -> int:
        """+1 or -1 if the interval excludes zero, else 0."""
        return int(self.low > 0) - int(self.high < 0)

    @property
    def clear(self) -> int:
        """`sign` where the test agrees with the interval, else 0: where tasks disagree, `p` may be large."""
        return self.sign if self.p < LEVEL else 0

    @property
    def flipped(self) -> Difference:
        """The same for the second row minus the first."""
        return replace(self, mean=0.0 - self.mean, low=0.0 - self.high, high=0.0 - self.low)


Gap = Difference | Withheld

SAMPLED_TASKS = (
    "Interval and test: Student's t over the mean differences of the tasks, which count as an independent sample of "
    "the tasks of interest."
)
FIXED_TASKS = (
    "Interval and test: Student's t on the differences between runs of the same seed, with a variance for each task "
    "and Welch-Satterthwaite degrees of freedom. The p-value is that of this t, or of the tasks' paired t-tests "
    "combined by Stouffer's method if it is larger. Both apply to these tasks only and assume independent runs and "
    "normal differences."
)


def diverged_score(better: int) -> float:
    """Return the score of a diverged run, which is worse than any number."""
    return -math.inf if better > 0 else math.inf


def same_tasks(
    tasks: Iterable[T], rows: Sequence[Mapping[T, Mapping[int, Any]]], may: Callable[[T, T], bool] = lambda *_: True
) -> dict[T, T]:
    """Map each repeated task to the earlier one that it repeats.

    `may` must allow the pair, and each run that a row has on both must agree. `rows` hold one value per run, such as
    its score: ``{task: {seed: value}}``. Runs that diverged on both tasks are no evidence.
    """
    same: dict[T, T] = {}
    for first, other in itertools.combinations(tasks, 2):
        if first in same or other in same or not may(first, other):
            continue
        pairs = [
            (row[first][seed], row[other][seed])
            for row in rows
            if first in row and other in row
            for seed in row[first].keys() & row[other].keys()
        ]
        if any(one not in (diverged_score(+1), diverged_score(-1)) for one, _ in pairs) and all(
            one == two for one, two in pairs
        ):
            same[other] = first
    return same


def united(*maps: Mapping[T, T]) -> dict[T, T]:
    """Return maps of repeated tasks as one: all tasks that any of them connects, also through others, map to one."""
    found: dict[T, T] = {}

    def first_of(task: T) -> T:
        while task in found:
            task = found[task]
        return task

    for other, first in (pair for one in maps for pair in one.items()):
        if (end := first_of(other)) != (start := first_of(first)):
            found[end] = start
    return {task: first_of(task) for task in found}


def mean_of(values: Iterable[float]) -> float:
    """Return the mean of a row's scores on a task: infinite if a run diverged, NaN without scores."""
    listed = list(values)
    infinite = next((value for value in listed if math.isinf(value)), None)
    if infinite is not None or not listed:
        return math.nan if infinite is None else infinite
    return math.fsum(listed) / len(listed)


def position(mine: float, worths: Sequence[float]) -> float:
    """Return the rank of one of several means: 1 is the highest, ties share the average."""
    own, others = settled(mine), [settled(other) for other in worths]
    return 1 + sum(other > own for other in others) + (others.count(own) - 1) / 2


@dataclass(frozen=True)
class Pairs:
    """Paired differences of two rows on one task: `n`, `mean`, sum of squared deviations, and diverged runs per row.

    `steady` tells that neither row varies over two seeds or more; `size` is the largest absolute score.
    """

    n: int
    mean: float
    squares: float
    size: float
    steady: bool
    lost: tuple[int, int]


def paired(one: SeedScores, other: SeedScores) -> dict[Any, Pairs]:
    """Return the paired differences of two rows by task, on the seeds that both have."""
    return {task: _pairs(values, other[task]) for task, values in one.items() if other.get(task) and values}


def _pairs(one: Mapping[int, float], other: Mapping[int, float]) -> Pairs:
    common = [seed for seed in one if seed in other]
    seeds = [seed for seed in common if math.isfinite(one[seed]) and math.isfinite(other[seed])]
    diverged = sum(math.isinf(one[seed]) for seed in common), sum(math.isinf(other[seed]) for seed in common)
    if not seeds:
        return Pairs(n=0, mean=0.0, squares=0.0, size=0.0, steady=False, lost=diverged)
    size = max(max(abs(one[seed]), abs(other[seed])) for seed in seeds)
    gaps = [one[seed] - other[seed] for seed in seeds]
    mean = _exact(math.fsum(gaps) / len(gaps), size)
    squares = math.fsum(_exact(gap - mean, size) ** 2 for gap in gaps)
    steady = len(seeds) > 1 and all(len({row[seed] for seed in seeds}) == 1 for row in (one, other))
    return Pairs(n=len(seeds), mean=mean, squares=squares, size=size, steady=steady, lost=diverged)


def _exact(value: float, size: float) -> float:
    """Return a difference of numbers of this size, or zero if it is within their rounding errors."""
    return 0.0 if abs(value) <= size * 10.0**-DIGITS else value


def difference(
    one: SeedScores,
    other: SeedScores,
    better: int = +1,
    counted: bool = False,
    same: Mapping[Any, Any] = MappingProxyType({}),
) -> Gap | None:
    """Return the mean difference over the common tasks with its interval and test, None without a pair of runs.

    Tasks that `same` maps to one task count once, by their mean.

    With fewer than `MANY_TASKS` tasks the variance is that over seeds, separate for each task, with Satterthwaite's
    degrees of freedom (1946, Biometrics Bulletin 2). For very unequal variances these make small p-values too small, so
    p is at least that of the tasks' paired t-tests, combined by Stouffer's method (1949). Stouffer's p alone is not
    enough: it tests whether the rows are equal on every task, not on their mean. With more tasks the variance is that
    of their mean differences.

    `counted` scores, such as bytes, are not random: if neither row varies over seeds, the difference is certain.
    Measured scores may agree on all seeds by chance. Two rows with equal scores throughout, and enough seeds, have
    difference zero with p = 1; if they differ by the same amount throughout, the variance cannot be estimated.
    """
    if same:
        common = [task for task in one if task in other]
        one, other = (_merged(scores, common, same) for scores in (one, other))
    return pooled(paired(one, other).values(), better, counted)


def _merged(scores: SeedScores, tasks: Iterable[Any], same: Mapping[Any, Any]) -> SeedScores:
    """Return scores on some tasks; those that `same` maps to one are merged, on the seeds of all of them."""
    groups: dict[Any, list[Any]] = {}
    for task in tasks:
        groups.setdefault(same.get(task, task), []).append(task)
    return {
        first: {
            seed: mean_of([scores[task][seed] for task in group])
            for seed in scores[group[0]]
            if all(seed in scores[task] for task in group)
        }
        for first, group in groups.items()
    }


def pooled(found: Iterable[Pairs], better: int = +1, counted: bool = False) -> Gap | None:
    """Return the difference over some tasks from their paired differences; None without any.

    Diverged runs decide without a test. Counted costs that never vary, and rows that are equal on enough seeds, have an
    exact difference. With `MANY_TASKS` the interval is over tasks, with fewer over seeds, if there are enough.
    """
    tasks = list(found)
    diverged = [sum(task.lost[i] for task in tasks) for i in (0, 1)]
    if any(diverged):
        sign = better * ((diverged[0] == 0) - (diverged[1] == 0))
        return Withheld(f"{counted_as(sum(diverged), 'run')} diverged on the tasks that both have", sign)
    tasks = [task for task in tasks if task.n]
    if not tasks:
        return None
    pairs = sum(task.n for task in tasks)
    mean = _exact(math.fsum(task.mean for task in tasks) / len(tasks), max(task.size for task in tasks))
    freedom = pairs - len(tasks)
    few = len(tasks) < MANY_TASKS and (min(task.n for task in tasks) < LEAST_SEEDS or freedom < LEAST_FREEDOM)
    if all((counted and task.steady) or not (few or task.mean or task.squares) for task in tasks):
        return Difference(
            mean=mean, low=mean, high=mean, p=float(mean == 0), tasks=len(tasks), pairs=pairs, assumes=FIXED_TASKS
        )
    if len(tasks) >= MANY_TASKS:
        return _over_tasks(tasks, mean, pairs)
    if few:
        return Withheld(_too_few(len(tasks), pairs), mean=mean)
    if any(task.mean and not task.squares for task in tasks):
        return Withheld("on some task all differences are equal, so their variance cannot be estimated", mean=mean)
    return _over_seeds(tasks, mean, pairs)


def _too_few(tasks: int, pairs: int) -> str:
    needs = f"{MANY_TASKS} tasks, or {LEAST_SEEDS} seeds per task and at least {LEAST_FREEDOM} more pairs than tasks"
    if tasks == 1:
        needs = f"{1 + LEAST_FREEDOM} seeds on one task"
    found = f"{counted_as(pairs, 'pair')} of runs on {counted_as(tasks, 'task')}"
    return f"{found} are too few; an interval needs {needs}"


def _over_tasks(tasks: Sequence[Pairs], mean: float, pairs: int) -> Gap:
    variance = math.fsum((task.mean - mean) ** 2 for task in tasks) / (len(tasks) - 1)
    error = _exact(math.sqrt(variance / len(tasks)), max(task.size for task in tasks))
    if not error and mean:
        return Withheld("the differences on all tasks are equal, so their variance cannot be estimated", mean=mean)
    p = 2 * float(special.stdtr(len(tasks) - 1, -abs(mean) / error)) if error else 1.0
    return _interval(mean, error, freedom=len(tasks) - 1, p=p, tasks=len(tasks), pairs=pairs, assumes=SAMPLED_TASKS)


def _over_seeds(tasks: Sequence[Pairs], mean: float, pairs: int) -> Gap:
    variances = [task.squares / (task.n - 1) / task.n for task in tasks]
    whole = math.fsum(variances)
    freedom = whole**2 / math.fsum(own**2 / (task.n - 1) for own, task in zip(variances, tasks, strict=True))
    error = math.sqrt(whole) / len(tasks)
    of_mean = 2 * float(special.stdtr(freedom, -abs(mean) / error))
    z = math.fsum(_normal(task, own) for own, task in zip(variances, tasks, strict=True)) / math.sqrt(len(tasks))
    combined = 2 * float(special.ndtr(-abs(z))) if z * mean > 0 else 1.0
    p = max(of_mean, combined)
    return _interval(mean, error, freedom=freedom, p=p, tasks=len(tasks), pairs=pairs, assumes=FIXED_TASKS)


def _normal(task: Pairs, variance: float) -> float:
    """Return the normal deviate with the same tail probability as a task's paired t statistic."""
    if not task.mean:
        return 0.0
    chance = float(special.stdtr(task.n - 1, -abs(task.mean) / math.sqrt(variance)))
    return math.copysign(-float(special.ndtri(chance)), task.mean)


def _interval(
    mean: float, error: float, *, freedom: float, p: float, tasks: int, pairs: int, assumes: str
) -> Difference:
    wide = _quantile(freedom) * error
    return Difference(mean=mean, low=mean - wide, high=mean + wide, p=p, tasks=tasks, pairs=pairs, assumes=assumes)


@cache
def _quantile(freedom: float) -> float:
    return float(special.stdtrit(freedom, 1 - LEVEL / 2))


def holm(chances: Sequence[float]) -> list[bool]:
    """Return which hypotheses Holm's procedure rejects at a familywise error of 5% (1979, Scand. J. Statist. 6)."""
    rejected = [False] * len(chances)
    for step, i in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        if chances[i] * (len(chances) - step) >= LEVEL:
            break
        rejected[i] = True
    return rejected


def average_ranks(scores: Sequence[SeedScores], better: int) -> tuple[list[float], int]:
    """Return the rows' average ranks (1 is best, ties share) over the (task, seed) pairs that all rows have.

    The second value is the number of these pairs; without any the ranks are NaN. Diverged runs share the last ranks.
    """
    common = [
        (task, seed)
        for task, values in (scores[0] if scores else {}).items()
        for seed in values
        if all(seed in row.get(task, {}) for row in scores)
    ]
    if not common:
        return [math.nan] * len(scores), 0
    values = pd.DataFrame([[settled(row[task][seed]) for row in scores] for task, seed in common])
    ranks = values.rank(axis=1, ascending=better < 0)
    return ranks.to_numpy().mean(0).tolist(), len(common)


def win_rates(scores: Sequence[SeedScores], better: int) -> list[float]:
    """Return each row's win rate over its comparisons, in percent; a tie is half a win.

    A comparison is with one other row on a task and seed that both have; without any the rate is NaN. A diverged run
    loses against every other run and ties with diverged ones.
    """
    blocks = sorted({(task, seed) for row in scores for task, values in row.items() for seed in values}, key=repr)
    values = np.array([[settled(row.get(task, {}).get(seed, math.nan)) for task, seed in blocks] for row in scores])
    shares = []
    for i, mine in enumerate(better * values):
        others = better * np.delete(values, i, axis=0)
        compared = int((~np.isnan(others) & ~np.isnan(mine)).sum())
        won = int((mine > others).sum()) + int((mine == others).sum()) / 2
        shares.append(100 * won / compared if compared else math.nan)
    return shares
