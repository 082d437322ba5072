"""What few seeds allow to say. Every result names what it assumes; where data are too few it is `Withheld`.

Scores are ``{task: {seed: value}}`` of one row. Two rows are compared on the (task, seed) pairs that both have:
a seed fixes partition, initial weights and batches, so the two runs of a pair differ in the method alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy import special, stats

Scores = Mapping[Any, Mapping[int, float]]

LEVEL = 0.05
RESAMPLES = 2000
MANY_TASKS = 5  # from here on the tasks count as a sample of tasks
LEAST_SEEDS = 3  # per task, to measure how seeds scatter
LEAST_FREEDOM = 4  # degrees of freedom of an interval
LEAST_BLOCKS = 6  # (task, seed) pairs of a Friedman test
LEAST_ROWS = 3


@dataclass(frozen=True)
class Withheld:
    """A statistic that the data do not carry, and why."""

    reason: str


@dataclass(frozen=True)
class Difference:
    """The mean over tasks of one row minus another, with a 95% interval; in the unit of the scores."""

    mean: float
    low: float
    high: float
    tasks: int
    pairs: int
    assumes: str

    @property
    def sign(self) -> int:
        """+1 or -1 if the interval excludes zero, else 0."""
        return int(self.low > 0) - int(self.high < 0)


SAMPLED_TASKS = (
    "Bootstrap over whole tasks, expanded for few of them: the tasks count as an independent sample of the tasks "
    "that one cares about."
)
FIXED_TASKS = (
    "Bootstrap over seeds within each task, expanded for few of them: it speaks of these tasks only, and takes the "
    "seeds of a task as independent."
)


def difference(one: Scores, other: Scores) -> Difference | Withheld:
    """Return the mean difference over the common tasks with the expanded percentile interval.

    Hesterberg 2015 (The American Statistician 69, 4), section 4.3: deviations from the mean are widened by
    sqrt(n / (n - 1)) and t / z, since the plain percentile interval is too short for few observations.
    """
    groups = []
    for task in one:
        seeds = sorted(set(one[task]) & set(other.get(task, {})))
        if seeds:
            groups.append(np.array([one[task][seed] - other[task][seed] for seed in seeds]))
    if not groups:
        return Withheld("no task and seed in common")
    means = np.array([group.mean() for group in groups])
    pairs = sum(map(len, groups))
    generator = np.random.default_rng(0)  # the same records give the same interval
    if len(groups) >= MANY_TASKS:
        freedom, assumes = len(groups) - 1, SAMPLED_TASKS
        deviations = _deviations(means, generator)
    else:
        short = min(map(len, groups))
        freedom, assumes = pairs - len(groups), FIXED_TASKS
        if short < LEAST_SEEDS or freedom < LEAST_FREEDOM:
            return Withheld(
                f"{_many(pairs, 'pair')} of runs on {_many(len(groups), 'task')} are too few; an interval needs "
                f"{MANY_TASKS} tasks, or {LEAST_SEEDS} seeds of each task and {LEAST_FREEDOM} pairs more than tasks"
            )
        deviations = np.mean([_deviations(group, generator) for group in groups], axis=0)
    widened = deviations * float(stats.t.ppf(1 - LEVEL / 2, freedom) / stats.norm.ppf(1 - LEVEL / 2))
    low, high = np.quantile(widened, [LEVEL / 2, 1 - LEVEL / 2])
    mean = float(means.mean())
    return Difference(mean, mean + float(low), mean + float(high), len(groups), pairs, assumes)


def _deviations(values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return resampled means [RESAMPLES] minus the mean, widened to the unbiased variance."""
    n = len(values)
    means = values[generator.integers(0, n, (RESAMPLES, n))].mean(1)
    return (means - values.mean()) * math.sqrt(n / (n - 1))


def _many(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def ranks(scores: Sequence[Scores], better: int) -> tuple[list[float], int]:
    """Return the rows' average ranks (1 is best, ties share) by their means, over the tasks that all of them have.

    The second value is the number of those tasks; with none the ranks are NaN.
    """
    tasks = [task for task in scores[0] if all(row.get(task) for row in scores)] if scores else []
    if not tasks:
        return [math.nan] * len(scores), 0
    means = np.array([[np.mean(list(row[task].values())) for row in scores] for task in tasks])
    return stats.rankdata(-better * means, axis=1).mean(0).tolist(), len(tasks)


def win_rates(scores: Sequence[Scores], better: int) -> list[float]:
    """Return for each row the share of its comparisons that it wins, in percent; an equal score is half a win.

    A comparison is one other row on one task and seed that both have; without any it is NaN.
    """
    blocks = sorted({(task, seed) for row in scores for task, values in row.items() for seed in values}, key=repr)
    values = np.array([[row.get(task, {}).get(seed, math.nan) for task, seed in blocks] for row in scores])
    shares = []
    for i, mine in enumerate(values):
        gains = better * (mine - np.delete(values, i, axis=0))
        compared = int((~np.isnan(gains)).sum())
        won = int((gains > 0).sum()) + int((gains == 0).sum()) / 2
        shares.append(100 * won / compared if compared else math.nan)
    return shares


@dataclass(frozen=True)
class Friedman:
    """Whether rows differ at all, and by how much two average ranks must differ to be told apart.

    `ranks` belong to the rows `members` (positions in what was given) over `blocks` (task, seed) pairs; `groups`
    are the largest sets of members, as positions, that cannot be told apart.
    """

    members: tuple[int, ...]
    ranks: tuple[float, ...]
    blocks: int
    tasks: int
    statistic: float
    p: float
    critical: float
    groups: tuple[tuple[int, ...], ...]

    assumes = (
        "Friedman's test, and Nemenyi's critical difference at 5%, over (task, seed) pairs as blocks that count as "
        "independent. Seeds of one task are not quite that, so the test is a little too sure of itself."
    )

    @property
    def found(self) -> bool:
        """Whether the test rejects that all rows are equal."""
        return self.p < LEVEL


def friedman(scores: Sequence[Scores], better: int) -> Friedman | Withheld:
    """Return Friedman's test with Nemenyi's critical difference (Demšar 2006, JMLR 7, section 3.2.2).

    Rows without any score take no part; of the others only the (task, seed) pairs that all have count.
    """
    members = tuple(i for i, row in enumerate(scores) if any(row.values()))
    if len(members) < LEAST_ROWS:
        return Withheld(f"{_many(len(members), 'row')} with scores, {LEAST_ROWS} are needed")
    rows = [scores[i] for i in members]
    common = [
        (task, seed)
        for task, values in rows[0].items()
        for seed in values
        if all(seed in row.get(task, {}) for row in rows)
    ]
    if len(common) < LEAST_BLOCKS:
        return Withheld(
            f"all {len(members)} rows have {_many(len(common), 'pair')} of task and seed in common, "
            f"{LEAST_BLOCKS} are needed"
        )
    values = np.array([[row[task][seed] for row in rows] for task, seed in common])
    average = stats.rankdata(-better * values, axis=1).mean(0)
    if (values == values[:, :1]).all():
        statistic, p = 0.0, 1.0  # scipy divides by zero
    else:
        statistic, p = map(float, stats.friedmanchisquare(*values.T))
    k, n = len(members), len(common)
    critical = nemenyi(k) * math.sqrt(k * (k + 1) / (6 * n))
    groups = _groups(average, critical if p < LEVEL else math.inf)
    return Friedman(
        members,
        tuple(average.tolist()),
        n,
        len({task for task, _ in common}),
        statistic,
        p,
        critical,
        tuple(tuple(members[i] for i in group) for group in groups),
    )


@cache
def nemenyi(rows: int) -> float:
    """Return the studentised range's 95% point for so many rows, over the square root of 2."""
    return float(stats.studentized_range.ppf(1 - LEVEL, rows, np.inf) / math.sqrt(2))


def _groups(average: np.ndarray, critical: float) -> list[list[int]]:
    """Return the maximal runs, in the order of ranks, whose ends differ by less than `critical`."""
    order = np.argsort(average, kind="stable").tolist()
    found: list[list[int]] = []
    last = -1
    for start in range(len(order)):
        near = [i for i in range(start, len(order)) if average[order[i]] - average[order[start]] < critical]
        end = max(near, default=start)
        if end > last and end > start:
            found.append(order[start : end + 1])
        last = max(last, end)
    return found


TIES_ASSUME = (
    "≈ stands where a paired t-test over the seeds (Holm's correction within the column, 5%) finds no difference from "
    "the best: it takes differences as normal, and few seeds tell only large ones apart."
)


def tied(best: Mapping[int, float], others: Sequence[Mapping[int, float]]) -> list[bool | None]:
    """Tell for each of `others` whether it cannot be told apart from `best`; None with fewer than 3 common seeds.

    Values are ``{seed: score}`` of one task; the test is the two-sided paired t-test with Holm's correction.
    """
    chances: list[float | None] = []
    for other in others:
        seeds = sorted(best.keys() & other.keys())
        if len(seeds) < LEAST_SEEDS:
            chances.append(None)
            continue
        gaps = np.array([best[seed] - other[seed] for seed in seeds])
        spread = float(gaps.std(ddof=1)) / math.sqrt(len(gaps))
        if spread == 0.0:
            chances.append(1.0 if gaps[0] == 0 else 0.0)
        else:
            chances.append(2 * float(special.stdtr(len(gaps) - 1, -abs(float(gaps.mean())) / spread)))
    tested = sorted((p, i) for i, p in enumerate(chances) if p is not None)
    verdicts: list[bool | None] = [None] * len(chances)
    rejecting = True
    for step, (p, i) in enumerate(tested):
        rejecting = rejecting and p * (len(tested) - step) < LEVEL
        verdicts[i] = not rejecting
    return verdicts
