"""Places from comparisons in pairs: what the runs tell apart is ordered, what they cannot tell apart shares places.

Only rows that share tasks are compared, each pair on the tasks of that pair; nothing is averaged over different tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedspan.benchmark.report.statistics import LEVEL, Difference, Gap, holm

ASSUMES = (
    "Surely better: the 95% interval of the difference excludes zero and its test holds after Holm's correction over "
    "all pairs of rows (5% for any mistake among them), or only the other row has diverged runs. A row leads if it is "
    "better than each of the k others: surely, or by its interval and by its test at 5%/k (5% for naming a wrong one)."
)


@dataclass(frozen=True)
class Place:
    """Where one row stands among the `field` rows of its group: at the earliest `first`, at the latest `last`.

    It is shown `at` a place that it has alone or `shared` with its neighbours. `better` and `worse` count the rows that
    it surely beats and that surely beat it, `ahead` those behind whose mean it is not, of the `compared` ones that
    share a task with it (half where means are equal). `group` numbers the sets of rows that common tasks connect, the
    largest first; `tested` tells whether any comparison could decide something.
    """

    row: int
    group: int
    field: int
    first: int
    last: int
    better: int
    worse: int
    ahead: float
    compared: int
    tested: bool
    at: int = 1
    shared: bool = False

    @property
    def text(self) -> str:
        """The place: ``1``, or ``2=`` where it is shared."""
        return f"{self.at}=" if self.shared else f"{self.at}"

    @property
    def range(self) -> str:
        """The places that the runs allow: ``1``, ``2–13``."""
        return f"{self.first}" if self.first == self.last else f"{self.first}–{self.last}"


@dataclass(frozen=True)
class Ranking:
    """Places in the order in which to show them, and the sure verdict of every pair of rows, as +1, -1 or 0.

    `leaders` are the rows that are surely better than every other row of their group, each by its own comparison.
    """

    places: tuple[Place, ...]
    verdicts: Mapping[tuple[int, int], int]
    leaders: frozenset[int] = frozenset()

    def verdict(self, one: int, other: int) -> int:
        """Return +1 where row `one` is surely better than `other`, -1 where it is surely worse, else 0."""
        return self.verdicts.get((one, other), -self.verdicts.get((other, one), 0))


def rank(rows: int, gaps: Mapping[tuple[int, int], Gap], better: int = +1) -> Ranking:
    """Rank rows by the differences of pairs (i, j), i < j, one minus the other; a pair that is absent has no task.

    No row stands before one that beats it, surely or by the interval of the pair alone. Where sure comparisons on
    different tasks contradict each other, or what follows from several of them contradicts the interval of a single
    one, the rows share their places. Neighbours share the place that is shown until one of them is surely behind
    another that has it.
    """
    groups = _groups(rows, gaps)
    verdicts = {pair: sign for group in groups for pair, sign in _sure(group, gaps, better).items()}
    leaders = frozenset(row for group in groups if (row := _leader(group, gaps, verdicts, better)) is not None)
    verdicts |= {pair: (+1 if pair[0] in leaders else -1) for pair in gaps if not leaders.isdisjoint(pair)}
    sure, alone = (np.zeros((rows, rows), bool) for _ in range(2))
    ahead = np.zeros((rows, rows))
    for (i, j), gap in gaps.items():
        for beats, sign in ((sure, verdicts[i, j]), (alone, better * gap.sign)):
            if sign:
                beats[(i, j) if sign > 0 else (j, i)] = True
        mean = better * gap.mean if isinstance(gap, Difference) else better * gap.sign
        ahead[i, j], ahead[j, i] = (0.5 * (1 + (mean > 0) - (mean < 0)), 0.5 * (1 + (mean < 0) - (mean > 0)))
    order = _strict(_without_contradiction(sure, alone))
    before = _precedence(alone, order)
    places = []
    for number, group in enumerate(groups):
        found = [_place(row, number, group, gaps, sure, order, float(ahead[row].sum())) for row in group]
        places += _with_places(_shown(found, before), order)
    return Ranking(tuple(places), verdicts, leaders)


def _leader(
    group: list[int],
    gaps: Mapping[tuple[int, int], Gap],
    verdicts: Mapping[tuple[int, int], int],
    better: int,
) -> int | None:
    """Return the row that is better than each other one of its group, or None; `verdicts` are those of all pairs.

    A row that is wrongly named must have beaten the best one, and k rows can be that one: tests at 5%/k name a wrong
    leader in 5% of cases at most. The verdicts of all pairs hold beside them.
    """
    for row in group if len(group) > 1 else ():
        level = LEVEL / (len(group) - 1)
        beaten = [
            verdicts[pair] == side or (better * gap.sign == side and (not isinstance(gap, Difference) or gap.p < level))
            for pair, gap in gaps.items()
            if (side := (pair[0] == row) - (pair[1] == row))
        ]
        if len(beaten) == len(group) - 1 and all(beaten):
            return row
    return None


def _with_places(shown: list[Place], order: np.ndarray) -> list[Place]:
    """Return places in the order in which they are shown, each with the one that it shares with its neighbours."""
    numbered: list[Place] = []
    start = 0
    for i, place in enumerate(shown):
        if any(order[other.row, place.row] for other in shown[start:i]):
            start = i
        numbered.append(replace(place, at=start + 1))
    sizes = Counter(place.at for place in numbered)
    return [replace(place, shared=sizes[place.at] > 1) for place in numbered]


def _precedence(alone: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return which row is to stand before which: one that beats another by its interval alone, or surely in a circle.

    Sure verdicts are among those of intervals, so that this has no circle.
    """
    reached = _closure(alone)
    return _strict(reached) | (order & reached & reached.T)


def _shown(places: Iterable[Place], before: np.ndarray) -> list[Place]:
    """Return places by the share of rows that each is ahead of, but none before one that must stand before it."""
    left = sorted(places, key=lambda place: (-place.ahead / max(1, place.compared), place.row))
    shown: list[Place] = []
    while left:
        free = next(place for place in left if not any(before[other.row, place.row] for other in left))
        left.remove(free)
        shown.append(free)
    return shown


def _place(
    row: int,
    number: int,
    group: list[int],
    gaps: Mapping[tuple[int, int], Gap],
    sure: np.ndarray,
    order: np.ndarray,
    ahead: float,
) -> Place:
    mine = [gap for pair, gap in gaps.items() if row in pair]
    return Place(
        row=row,
        group=number,
        field=len(group),
        first=1 + int(order[:, row].sum()),
        last=len(group) - int(order[row].sum()),
        better=int(sure[row].sum()),
        worse=int(sure[:, row].sum()),
        ahead=ahead,
        compared=len(mine),
        tested=any(isinstance(gap, Difference) or gap.sign for gap in mine),
    )


def _groups(rows: int, gaps: Mapping[tuple[int, int], Gap]) -> list[list[int]]:
    """Return the sets of rows that common tasks connect, the largest first."""
    near = np.zeros((rows, rows), bool)
    for i, j in gaps:
        near[i, j] = near[j, i] = True
    joined = _closure(near) | np.eye(rows, dtype=bool)
    found = {tuple(np.flatnonzero(joined[row]).tolist()) for row in range(rows)}
    return [list(group) for group in sorted(found, key=lambda group: (-len(group), group))]


def _sure(group: list[int], gaps: Mapping[tuple[int, int], Gap], better: int) -> dict[tuple[int, int], int]:
    """Return which row of each pair is better (+1: the first, -1: the second) when all pairs of the group are asked."""
    members = set(group)
    mine = {pair: gap for pair, gap in gaps.items() if pair[0] in members}
    tested = {pair: gap for pair, gap in mine.items() if isinstance(gap, Difference)}
    rejected = dict(zip(tested, holm([gap.p for gap in tested.values()]), strict=True))
    return {pair: better * gap.sign if rejected.get(pair, True) else 0 for pair, gap in mine.items()}


def _closure(beats: np.ndarray) -> np.ndarray:
    """Return which rows lead to which over one step or more."""
    reached = beats.copy()
    for middle in range(len(reached)):
        reached |= np.outer(reached[:, middle], reached[middle])
    return reached


def _without_contradiction(sure: np.ndarray, alone: np.ndarray) -> np.ndarray:
    """Return which rows lead to which by sure verdicts; a comparison that opposes a chain closes a circle."""
    known, reached = sure, _closure(sure)
    while (opposed := alone & reached.T & ~known).any():
        known = known | opposed
        reached = _closure(known)
    return reached


def _strict(reached: np.ndarray) -> np.ndarray:
    """Return a closure without what goes both ways: rows in a circle share their place."""
    return reached & ~reached.T
