"""Places from pairwise comparisons: rows that the runs distinguish are ordered, the others share places.

Only rows with common tasks are compared, each pair on its own common tasks; nothing is averaged over different tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedspan.benchmark.report.statistics import LEVEL, Difference, Gap, holm

ASSUMES = (
    "Significantly better: the 95% interval of the difference excludes zero and its test holds after Holm's correction "
    "over all pairs of rows that tasks connect (about 5% for any mistake among them), or only the other row has "
    "diverged runs. A row may be the best unless one of the k others is better than it: significantly, or by the "
    "interval of the pair and by its test at 5%/k (about 5% for leaving the best one out). A row leads if it is better "
    "than each other one by the same rule (about 5% for naming a wrong leader); it then counts as significantly better "
    "than each of them, even where Holm's correction rejects nothing."
)


@dataclass(frozen=True)
class Place:
    """The place of one row among the `field` rows of its group, between `first` and `last`.

    It is displayed as `at`, alone or `shared` with its neighbours. Of the `compared` rows, which share a task with it,
    `ahead` counts those with a worse mean (half for an equal one). `group` numbers the sets of rows connected by common
    tasks, the largest first.
    `tested` tells whether any comparison could decide something, `contends` whether the row may be the best of its
    group.
    """

    row: int
    group: int
    field: int
    first: int
    last: int
    ahead: float
    compared: int
    tested: bool
    contends: bool = True
    at: int = 1
    shared: bool = False

    @property
    def text(self) -> str:
        """The place: ``1``, or ``2=`` where it is shared."""
        return f"{self.at}=" if self.shared else f"{self.at}"

    @property
    def range(self) -> str:
        """The places compatible with the runs: ``1``, ``2–13``."""
        return f"{self.first}" if self.first == self.last else f"{self.first}–{self.last}"


@dataclass(frozen=True)
class Ranking:
    """Places in display order, and the significant verdict of every pair of rows as +1, -1 or 0.

    `leaders` are the rows that are better than every other row of their group, each in a direct comparison and by the
    rule for the first place; they count as significantly better than those rows, whatever the correction over all pairs
    says.
    """

    places: tuple[Place, ...]
    verdicts: Mapping[tuple[int, int], int]
    leaders: frozenset[int] = frozenset()

    def verdict(self, one: int, other: int) -> int:
        """Return +1 where row `one` is significantly better than `other`, -1 where significantly worse, else 0."""
        return self.verdicts.get((one, other), -self.verdicts.get((other, one), 0))


def rank(rows: int, gaps: Mapping[tuple[int, int], Gap], better: int = +1) -> Ranking:
    """Rank rows by the differences of pairs (i, j), i < j, first minus second; absent pairs share no task.

    No row is placed above one that beats it, significantly or by the interval of the pair alone. Rows share places
    where significant comparisons on different tasks contradict each other, or where a chain of them contradicts the
    interval of a single pair. Neighbours share a displayed place until one of them is significantly behind another with
    that place, or cannot be the best while an earlier one can.
    """
    groups = _groups(rows, gaps)
    verdicts = {pair: sign for group in groups for pair, sign in _significant(group, gaps, better).items()}
    beats = _beats(groups, gaps, verdicts, better)
    leaders = frozenset(row for group in groups for row in group if beats[row].sum() == len(group) - 1 > 0)
    verdicts |= {pair: (+1 if pair[0] in leaders else -1) for pair in gaps if not leaders.isdisjoint(pair)}
    significant = _above(rows, verdicts)
    by_interval = _above(rows, {pair: better * gap.sign for pair, gap in gaps.items()})
    reached = _without_contradiction(significant, by_interval)
    order = _Order(
        strict=_strict(reached),
        shown=_precedence(by_interval, _strict(reached)),
        contends=_contenders(groups, beats, reached),
    )
    means = {pair: better * (gap.sign or gap.mean) for pair, gap in gaps.items()}
    places = []
    for number, group in enumerate(groups):
        shown = _shown([_place(row, number, group, gaps, means, order) for row in group], order)
        places += _with_places(shown, order)
    return Ranking(tuple(places), verdicts, leaders)


@dataclass(frozen=True)
class _Order:
    """The order of all rows; matrices are [rows, rows], where [i, j] says that row i is above row j.

    `strict` decides places, `shown` (a superset) the sequence of rows on a page. `contends` [rows] says which rows may
    be the best of their group.
    """

    strict: np.ndarray
    shown: np.ndarray
    contends: np.ndarray


def _above(rows: int, signs: Mapping[tuple[int, int], float]) -> np.ndarray:
    """Return the matrix [i, j] of whether i is above j, from a sign per pair: +1 if its first row is, -1 its second."""
    above = np.zeros((rows, rows), bool)
    for (i, j), sign in signs.items():
        if sign:
            above[(i, j) if sign > 0 else (j, i)] = True
    return above


def _beats(
    groups: Iterable[list[int]],
    gaps: Mapping[tuple[int, int], Gap],
    verdicts: Mapping[tuple[int, int], int],
    better: int,
) -> np.ndarray:
    """Return which row beats which, for deciding the first place; `verdicts` are those over all pairs.

    The best row is excluded by mistake only if one of the k others beats it by chance: tests at 5%/k keep the
    probability of that at about 5% or less. Where the verdicts over all pairs decide, they apply as well.
    """
    size = {row: len(group) for group in groups for row in group}
    signs: dict[tuple[int, int], float] = dict(verdicts)
    for pair, gap in gaps.items():
        if not signs[pair] and (not isinstance(gap, Difference) or gap.p < LEVEL / (size[pair[0]] - 1)):
            signs[pair] = better * gap.sign
    return _above(len(size), signs)


def _contenders(groups: Iterable[list[int]], beats: np.ndarray, reached: np.ndarray) -> np.ndarray:
    """Return which rows may be the best of their group: no row beats them or strictly precedes them.

    Rows in a cycle are in or out together. If none is left, all rows without a strict predecessor are in.
    """
    first = np.logical_not(_strict(reached).any(axis=0))
    unbeaten = first & ~beats.any(axis=0)
    contends = unbeaten | (first & (reached & reached.T)[unbeaten].any(axis=0))
    for group in groups:
        if not contends[group].any():
            contends[group] = first[group]
    return contends


def _with_places(shown: list[Place], order: _Order) -> list[Place]:
    """Return the places, given in display order, with the displayed one (`at`) and whether it is `shared`."""
    numbered: list[Place] = []
    start = 0
    for i, place in enumerate(shown):
        sharing = shown[start:i]
        behind_the_best = start == 0 and not place.contends and any(other.contends for other in sharing)
        if behind_the_best or any(order.strict[other.row, place.row] for other in sharing):
            start = i
        numbered.append(replace(place, at=start + 1))
    sizes = Counter(place.at for place in numbered)
    return [replace(place, shared=sizes[place.at] > 1) for place in numbered]


def _precedence(by_interval: np.ndarray, strict: np.ndarray) -> np.ndarray:
    """Return which row must precede which: by the intervals of pairs and, within a cycle of these, significantly.

    Significant verdicts are a subset of the intervals' verdicts, so the result has no cycle.
    """
    reached = _closure(by_interval)
    return _strict(reached) | (strict & reached & reached.T)


def _shown(places: Iterable[Place], order: _Order) -> list[Place]:
    """Return places sorted by the share of rows that each is ahead of, as far as the order of rows permits."""
    left = sorted(places, key=lambda place: (-place.ahead / max(1, place.compared), place.row))
    shown: list[Place] = []
    while left:
        free = next(place for place in left if not any(order.shown[other.row, place.row] for other in left))
        left.remove(free)
        shown.append(free)
    return shown


def _place(
    row: int,
    number: int,
    group: list[int],
    gaps: Mapping[tuple[int, int], Gap],
    means: Mapping[tuple[int, int], float],
    order: _Order,
) -> Place:
    """Return a row's place in its group; `means` > 0 favour a pair's first row."""
    mine = [pair for pair in gaps if row in pair]
    ahead = [means[pair] if pair[0] == row else -means[pair] for pair in mine]
    above = order.strict[:, row]
    elsewhere = not (order.contends[row] or order.contends[above].any())  # the best row is another, above all of these
    return Place(
        row=row,
        group=number,
        field=len(group),
        first=1 + int(above.sum()) + int(elsewhere),
        last=len(group) - int(order.strict[row].sum()),
        ahead=0.5 * sum(1 + (mean > 0) - (mean < 0) for mean in ahead),
        compared=len(mine),
        tested=any(isinstance(gaps[pair], Difference) or gaps[pair].sign for pair in mine),
        contends=bool(order.contends[row]),
    )


def _groups(rows: int, gaps: Mapping[tuple[int, int], Gap]) -> list[list[int]]:
    """Return the sets of rows connected by common tasks, the largest first."""
    near = np.zeros((rows, rows), bool)
    for i, j in gaps:
        near[i, j] = near[j, i] = True
    joined = _closure(near) | np.eye(rows, dtype=bool)
    found = {tuple(np.flatnonzero(joined[row]).tolist()) for row in range(rows)}
    return [list(group) for group in sorted(found, key=lambda group: (-len(group), group))]


def _significant(group: list[int], gaps: Mapping[tuple[int, int], Gap], better: int) -> dict[tuple[int, int], int]:
    """Return each pair's verdict (+1: first is better, -1: second, 0: open), corrected for all pairs of the group."""
    members = set(group)
    mine = {pair: gap for pair, gap in gaps.items() if pair[0] in members}
    tested = {pair: gap for pair, gap in mine.items() if isinstance(gap, Difference)}
    rejected = dict(zip(tested, holm([gap.p for gap in tested.values()]), strict=True))
    return {pair: better * gap.sign if rejected.get(pair, True) else 0 for pair, gap in mine.items()}


def _closure(beats: np.ndarray) -> np.ndarray:
    """Return the transitive closure: which rows lead to which in one step or more."""
    reached = beats.copy()
    for middle in range(len(reached)):
        reached |= np.outer(reached[:, middle], reached[middle])
    return reached


def _without_contradiction(significant: np.ndarray, by_interval: np.ndarray) -> np.ndarray:
    """Return the closure of significant verdicts; an interval that opposes a chain is added and closes a cycle."""
    known, reached = significant, _closure(significant)
    while (opposed := by_interval & reached.T & ~known).any():
        known = known | opposed
        reached = _closure(known)
    return reached


def _strict(reached: np.ndarray) -> np.ndarray:
    """Return a closure without mutual pairs: rows in a cycle share their place."""
    return reached & ~reached.T
