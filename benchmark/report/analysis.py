"""Analysis of a whole table: standings of its rows, differences to the first, and time to a target accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pandas as pd

from fedspan.benchmark.records.model import settled
from fedspan.benchmark.report import forest, statistics
from fedspan.benchmark.report.axes import DEFAULT, in_words
from fedspan.benchmark.report.ranking import ASSUMES, Place, rank
from fedspan.benchmark.report.statistics import Difference, Gap, SeedScores, Withheld
from fedspan.benchmark.report.table import TableCell, TableRow, Tabulated


@dataclass(frozen=True)
class Standing:
    """Standing of one row in a table; numbers are NaN where nothing can be compared.

    `rank` is the average rank over the `blocks`, the (task, seed) pairs that every row has; `wins` is the percentage of
    won comparisons on (task, seed) pairs; `difference` is to the first row with a score (None for that row itself), and
    `sure` is +1 or -1 where the row is significantly better or worse than that row, with all pairs of rows tested, or
    where one of the two leads. All of these, and the place, are among the rows of the same `kind`. A diverged run is
    worse than any score.
    """

    number: int  # of the row, from 1
    row: TableRow
    kind: str  # default or tuned; empty on a board without tuning
    place: Place
    leads: bool
    mean: float  # over the tasks that every competing row has; NaN if a run of the row diverged there
    rank: float
    blocks: int
    wins: float
    difference: Gap | None
    sure: int


@dataclass(frozen=True)
class Bound:
    """A row that does not compete: its mean over the tasks that every competing row has, and its lead."""

    row: TableRow
    mean: float  # NaN if it lacks one of these tasks or one of its runs diverged there
    difference: Gap | None  # to the reference of its kind


@dataclass(frozen=True)
class Analysis:
    """A table's competing rows in order of place, and its bounds.

    `significant_pairs` holds the pairs of row numbers of which one is significantly better. Default and tuned rows are
    not compared with each other: each kind has its own reference, its first row with a score.
    """

    table: Tabulated
    standings: tuple[Standing, ...]
    references: tuple[TableRow, ...]
    common: tuple[int, ...]  # positions of the columns that every competing row has
    significant_pairs: frozenset[frozenset[int]]
    bounds: tuple[Bound, ...] = ()

    @property
    def measured(self) -> tuple[Standing | Bound, ...]:
        """The competing rows, then the bounds."""
        return (*self.standings, *self.bounds)

    @property
    def shared(self) -> int:
        """Number of columns that every competing row has."""
        return len(self.common)

    @property
    def once(self) -> str:
        """The clause that common columns scoring the same models count as one in means; empty if none do."""
        merged = any(len(self.common_of(task)) > 1 for task in self.table.tasks)
        return "; columns that score the same models count as one" if merged else ""

    def common_of(self, task: Sequence[int]) -> list[int]:
        """Return the columns of a task that every competing row has."""
        return [column for column in task if column in self.common]

    @property
    def several(self) -> bool:
        """Whether rows of one kind form several groups without common columns, so that places count within groups."""
        groups = {(standing.kind, standing.place.group) for standing in self.standings}
        return len(groups) > len({kind for kind, _ in groups})

    def reference_of(self, row: TableRow) -> TableRow:
        """Return the reference of a row's kind, which the row is compared with."""
        return next(one for one in self.references if self.table.kind(one) == self.table.kind(row))

    def x(self, value: float) -> str:
        """Return the x coordinate of a difference in its picture."""
        gaps = [one.difference for one in self.measured]
        found = [gap for gap in gaps if isinstance(gap, Difference)]
        return forest.place(value, forest.ends_of((gap.mean, gap.low, gap.high) for gap in found))

    @property
    def assumptions(self) -> list[str]:
        """Assumptions of places and intervals, and reasons for withheld ones, without duplicates."""
        found = [s.difference for s in self.standings if s.difference is not None]
        said = [f"Withheld: {gap.reason}." if isinstance(gap, Withheld) else gap.assumes for gap in found]
        return list(dict.fromkeys([ASSUMES, *said, *self._rows_of_same_models]))

    @property
    def merged_columns(self) -> Iterator[str]:
        """Remarks on columns that score the same models and so count as one task."""
        for columns in self.table.tasks:
            if len(columns) > 1:
                axes, labels = self.table.column_axes, (self.table.columns[i] for i in columns)
                named = "; ".join(", ".join(map(in_words, axes, mine)) for mine in labels)
                yield f"These columns score the same models and count as one task, by their mean: {named}."

    @property
    def _rows_of_same_models(self) -> Iterator[str]:
        """Remarks on rows that are no evidence beside each other."""
        for rows in self.table.same_models:
            named = "; ".join(", ".join(map(in_words, self.table.row_axes, row.labels)) for row in rows)
            yield f"These rows trained the same models, to the last bit, and are one piece of evidence: {named}."

    @property
    def columns(self) -> int:
        """Number of columns in the table."""
        return len(self.table.columns)


def analyse(table: Tabulated) -> Analysis | None:
    """Return the standings of a table's rows; None without two rows with runs, a score and a better direction.

    Rows whose runs all diverged rank last; bounds are left out.
    """
    better = table.metric.better
    rows = _with_runs(table)
    if len(rows) < 2 or not better or not any(entry and entry.values for _, row in rows for entry in row.entries):
        return None
    scores, kinds = [table.scores(row) for _, row in rows], [table.kind(row) for _, row in rows]
    differ = pairwise(table)
    gaps = {
        (i, j): gap
        for i, (_, one) in enumerate(rows)
        for j, (_, other) in enumerate(rows[i + 1 :], i + 1)
        if kinds[i] == kinds[j] and (gap := differ(one, other)) is not None
    }
    ranking = rank(len(rows), gaps, better)
    firsts: dict[str, int] = {}
    for i, (_, row) in enumerate(rows):
        if any(entry and entry.values for entry in row.entries):
            firsts.setdefault(kinds[i], i)
    first = [firsts.get(kind, i) for i, kind in enumerate(kinds)]
    ranks = _ranks(scores, kinds, better)
    common = tuple(task for task in scores[0] if all(task in row for row in scores))
    standings = [
        Standing(
            number=rows[i][0],
            row=rows[i][1],
            kind=kinds[i],
            place=place,
            leads=i in ranking.leaders,
            mean=_finite_mean(scores[i], common),
            rank=average,
            blocks=blocks,
            wins=wins,
            difference=None if i == first[i] else differ(rows[i][1], rows[first[i]][1]),
            sure=ranking.verdict(i, first[i]),
        )
        for i, place, (average, blocks, wins) in ((place.row, place, ranks[place.row]) for place in ranking.places)
    ]
    pairs = frozenset(frozenset(rows[i][0] for i in pair) for pair, sign in ranking.verdicts.items() if sign)
    return Analysis(
        table=table,
        standings=tuple(standings),
        references=tuple(rows[i][1] for i in firsts.values()),
        common=tuple(_columns_of_all(table, common, [row for _, row in rows])),
        significant_pairs=pairs,
        bounds=tuple(_bounds(table, {kind: rows[i][1] for kind, i in firsts.items()}, common, differ)),
    )


def _columns_of_all(table: Tabulated, tasks: Iterable[int], rows: Sequence[TableRow]) -> Iterator[int]:
    """Yield the columns of tasks that every row has: of several with the same models, a row may lack some."""
    for i in sorted(i for task in tasks for i in table.tasks[task]):
        if all((entry := row.entries[i]) and entry.outcomes(table.metric.better) for row in rows):
            yield i


def pairwise(table: Tabulated) -> Callable[[TableRow, TableRow], Gap | None]:
    """Return the function that computes the difference of two rows of a table."""
    known = {id(row): (table.scores(row), table.alike(row)) for row in table.rows}
    difference = partial(statistics.difference, better=table.metric.better, counted=table.metric.counted)

    def differ(one: TableRow, other: TableRow) -> Gap | None:
        (mine, same), (theirs, also) = known[id(one)], known[id(other)]
        return difference(mine, theirs, same=statistics.united(same, also))

    return differ


def _ranks(scores: Sequence[SeedScores], kinds: Sequence[str], better: int) -> dict[int, tuple[float, int, float]]:
    """Return each row's average rank, number of blocks and win rate, all among the rows of its kind."""
    found: dict[int, tuple[float, int, float]] = {}
    for kind in dict.fromkeys(kinds):
        mine = [i for i, other in enumerate(kinds) if other == kind]
        own = [scores[i] for i in mine]
        ranks, blocks = statistics.average_ranks(own, better)
        for i, average, wins in zip(mine, ranks, statistics.win_rates(own, better), strict=True):
            found[i] = (average, blocks, wins)
    return found


def _bounds(
    table: Tabulated,
    references: Mapping[str, TableRow],
    common: Sequence[int],
    differ: Callable[[TableRow, TableRow], Gap | None],
) -> Iterator[Bound]:
    """Yield the bounds of a table that have runs, each compared with the reference of its kind."""
    for row in table.rows:
        if not row.bound or not (scores := table.scores(row)):
            continue
        base = references.get(table.kind(row))
        mean = _finite_mean(scores, common) if all(task in scores for task in common) else math.nan
        yield Bound(row, mean, differ(row, base) if base else None)


def _with_runs(table: Tabulated) -> list[tuple[int, TableRow]]:
    """Return the competing rows that have runs, with their numbers; on a tuned board, default rows last."""
    every = [(number, row) for number, row in enumerate(table.rows, 1) if not row.bound]
    found = [(number, row) for number, row in every if table.scores(row)]
    return sorted(found, key=lambda numbered: table.kind(numbered[1]) == DEFAULT)


def _finite_mean(scores: SeedScores, tasks: Sequence[int]) -> float:
    """Return a row's mean over tasks; NaN without tasks or if a run diverged."""
    means = [statistics.mean_of(scores[task].values()) for task in tasks]
    return fmean(means) if means and all(map(math.isfinite, means)) else math.nan


TargetCost = tuple[float, float, float, float]  # rounds, bytes, seconds, simulated seconds


@dataclass(frozen=True)
class TimeToTarget:
    """How soon the runs of one cell reach the target: restricted means over all runs with an outcome.

    `rounds` is the first evaluated round at or above the target, `traffic` the bytes sent and received by all clients
    until then, `seconds` the wall-clock time with its sample standard deviation, `simulated` the seconds of the fleet's
    clock, NaN without one. Runs that `never` arrive are censored: they count with all `last` rounds, so that the mean
    is a lower bound (the restricted mean of survival analysis, with the end of training as its horizon); a diverged run
    counts with the mean cost of the others' whole training. `n` runs arrive; of the `asked`, those in neither count
    have no outcome yet.
    """

    n: int
    never: int
    asked: int
    last: int
    rounds: float = math.nan
    traffic: float = math.nan
    seconds: float = math.nan
    seconds_std: float = math.nan
    simulated: float = math.nan

    @property
    def arrives(self) -> bool:
        """Whether every run with an outcome arrives, so that the means are not just lower bounds."""
        return self.n > 0 and not self.never


@dataclass(frozen=True)
class Targets:
    """Target accuracy in percent per column (NaN without one), and how soon each row reaches it."""

    table: Tabulated
    reference: TableRow
    targets: tuple[float, ...]
    rows: tuple[tuple[TableRow, tuple[TimeToTarget | None, ...]], ...]


def reach_targets(table: Tabulated, frame: pd.DataFrame) -> Targets | None:
    """Return how soon every row reaches the final accuracy of the first row with curves, per column.

    `frame` comes from `collect`. The target is the mean accuracy of that row's runs at their last evaluated round.
    Seconds are NaN if the runs come from several kinds of machine or shared theirs, as they are not comparable.
    Return None if the metric is not the trained model's accuracy, without accuracies per round, or for a single row.
    """
    if table.metric.path != "trained.accuracy" or not table.of_runs:
        return None
    runs: dict[str, Any] = {str(run.key): run for run in frame.itertuples(index=False)}
    cells = {
        (r, c): _CellRuns.of(entry, runs)
        for r, row in enumerate(table.rows)
        for c, entry in enumerate(row.entries)
        if entry is not None
    }
    places = range(len(table.columns))
    first = next((r for r in range(len(table.rows)) if any((r, c) in cells and cells[r, c].done for c in places)), None)
    if first is None or len(table.rows) < 2:
        return None
    targets = tuple(cells[first, c].end if (first, c) in cells else math.nan for c in places)
    found = tuple(
        (row, tuple(_reach(cells.get((r, c)), targets[c]) for c in places)) for r, row in enumerate(table.rows)
    )
    rows = tuple((row, tuple(map(_untimed, reached))) for row, reached in found) if table.why_untimed else found
    return Targets(table=table, reference=table.rows[first], targets=targets, rows=rows)


def _untimed(reach: TimeToTarget | None) -> TimeToTarget | None:
    return reach and replace(reach, seconds=math.nan, seconds_std=math.nan)


@dataclass(frozen=True)
class _CellRuns:
    """Runs of a table cell with an outcome: those with a curve, and the number that diverged."""

    asked: int
    done: tuple[Any, ...]
    diverged: int

    @staticmethod
    def of(entry: TableCell, runs: Mapping[str, Any]) -> _CellRuns:
        mine = [(runs[seed.key], seed) for seed in entry.runs if seed.key in runs]
        done = [run for run, seed in mine if run.status == "done" and seed.value is not None and run.curve is not None]
        return _CellRuns(entry.asked, tuple(done), sum(seed.status == "diverged" for _, seed in mine))

    @property
    def end(self) -> float:
        """Mean accuracy in percent at the last evaluated round, NaN without runs."""
        return statistics.mean_of(float(run.curve[1][-1]) for run in self.done)

    def costs(self, target: float) -> tuple[list[TargetCost], list[TargetCost]]:
        """Return the costs of the runs that arrive, up to arrival, and the total costs of the others."""
        arrived: list[TargetCost] = []
        censored: list[TargetCost] = []
        for run in self.done:
            rounds, accuracy = run.curve
            above = np.flatnonzero(np.array([*map(settled, accuracy)]) >= settled(target))
            when = int(rounds[above[0] if len(above) else -1])
            known = (costs.get(when, math.nan) for costs in (run.bytes_until, run.elapsed, run.simulated))
            cost = float(when), *known
            (arrived if len(above) else censored).append(cost)
        if self.done:
            ends = [
                (float(run.rounds), _last(run.bytes_until), _last(run.elapsed), _last(run.simulated))
                for run in self.done
            ]
            rounds, traffic, seconds, simulated = (fmean(values) for values in zip(*ends, strict=True))
            censored += self.diverged * [(rounds, traffic, seconds, simulated)]
        return arrived, censored


def _last(by_round: Mapping[int, float]) -> float:
    return by_round[max(by_round)] if by_round else math.nan


def _reach(cell: _CellRuns | None, target: float) -> TimeToTarget | None:
    if cell is None or math.isnan(target) or not (cell.done or cell.diverged):
        return None
    arrived, censored = cell.costs(target)
    last = cell.done[0].rounds if cell.done else 0
    if not arrived:
        return TimeToTarget(n=0, never=len(censored) or cell.diverged, asked=cell.asked, last=last)
    every = [*arrived, *censored]
    rounds, traffic, seconds, simulated = (fmean(values) for values in zip(*every, strict=True))
    spread = stdev(cost[2] for cost in every) if len(every) > 1 and math.isfinite(seconds) else math.nan
    return TimeToTarget(
        n=len(arrived),
        never=len(censored),
        asked=cell.asked,
        last=last,
        rounds=rounds,
        traffic=traffic,
        seconds=seconds,
        seconds_std=spread,
        simulated=simulated,
    )


def pareto(points: Sequence[tuple[float, float]], better: int) -> list[int]:
    """Return the indices of the (cost, score) points that no other beats in both: the front, by increasing cost."""
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -better * points[i][1]))
    front: list[int] = []
    for i in order:
        if not front or better * points[i][1] > better * points[front[-1]][1]:
            front.append(i)
    return front
