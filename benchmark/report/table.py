"""A table of a board: its cells, its rows, and the caption that explains them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from fedspan.benchmark.report import statistics
from fedspan.benchmark.report.axes import TUNING, named
from fedspan.benchmark.report.metric import Metric
from fedspan.benchmark.report.printed import Reproduction
from fedspan.benchmark.report.units import CostColumn, cost_columns
from fedspan.benchmark.training.costs import ASSUMES, STAGE


@dataclass(frozen=True)
class SeedRun:
    """One run behind a table cell; `value` is None without a number."""

    seed: int
    key: str
    status: str
    reason: str
    command: str
    value: float | None
    repeated: str = ""  # text on whether somebody repeated it
    models: str = ""  # digests of the scored models


def _models(run: SeedRun) -> str:
    """Return the digests of the models that a run scored, its key where they are unknown, empty without a score."""
    return run.models or (run.key if run.value is not None else "")


@dataclass(frozen=True)
class TableCell:
    """Mean and sample standard deviation over the `n` of `asked` seeds that have a value.

    Without a value `state` gives the reason: ``n/a`` (the metric is null by definition), ``absent`` (the records have
    no such score), or one of `tabulation.BAD`. `std` is None for fewer than two seeds. `marks` refer to the notes.
    """

    state: str
    mean: float | None
    std: float | None
    n: int
    asked: int
    cost: dict[str, float]
    runs: tuple[SeedRun, ...]
    point: str  # names the page of its runs
    marks: tuple[str, ...] = ()
    printed: Reproduction | None = None
    best: bool = False

    @property
    def diverged(self) -> int:
        """The number of diverged runs."""
        return sum(run.status == "diverged" for run in self.runs)

    def outcomes(self, better: int) -> dict[int, float]:
        """Return the value of each seed that has one or diverged; a diverged run is worse than any value."""
        return self.values | {
            run.seed: statistics.diverged_score(better) for run in self.runs if run.status == "diverged"
        }

    @property
    def values(self) -> dict[int, float]:
        """The value of each seed that has one."""
        return {run.seed: run.value for run in self.runs if run.value is not None}

    @property
    def whole(self) -> bool:
        """Whether every seed that the grid asks for has a value."""
        return self.n == self.asked


@dataclass(frozen=True)
class TableRow:
    """One row: a label per row axis, an entry per column (None where the grid has no such cell), its cost.

    A `bound` is an upper limit for the methods of the other rows and does not compete with them.
    """

    labels: tuple[str, ...]
    entries: tuple[TableCell | None, ...]
    cost: dict[str, float]
    filters: tuple[str, ...]
    bound: bool = False

    @property
    def waits(self) -> bool:
        """Whether none of its cells has an outcome or a printed number yet."""
        known = [entry for entry in self.entries if entry is not None]
        return all(entry.state == "missing" and entry.mean is None and not entry.printed for entry in known)

    @property
    def applies(self) -> bool:
        """Whether a cell has an outcome or may still get one: not all are skipped or without such a score."""
        return any(entry is not None and entry.state not in ("skipped", "n/a") for entry in self.entries)

    @property
    def diverged(self) -> int:
        """The number of diverged runs."""
        return sum(entry.diverged for entry in self.entries if entry is not None)


@dataclass(frozen=True)
class Tabulated:
    """A table ready for output in any format; each entry of `columns` has one label per column axis."""

    number: int
    title: str
    metric: Metric
    row_axes: tuple[str, ...]
    column_axes: tuple[str, ...]
    filter_axes: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]
    rows: tuple[TableRow, ...]
    notes: tuple[tuple[str, str], ...]  # mark, text
    remarks: tuple[str, ...]
    problems: tuple[str, ...]
    scales: tuple[str, ...] = ()
    minus: str = ""  # the reference of a table of differences, as boards write it
    printed: tuple[str, ...] = ()  # sources of printed numbers
    machines: tuple[str, ...] = ()  # kinds of machine of its finished runs

    def heading(self, column: tuple[str, ...]) -> str:
        """Return one column's heading."""
        return (
            ", ".join(named(axis, label) for axis, label in zip(self.column_axes, column, strict=True))
            or self.metric.label
        )

    def kind(self, row: TableRow) -> str:
        """Return whether a row of a tuned board has default or tuned settings; empty on other boards."""
        return row.labels[self.row_axes.index(TUNING)] if TUNING in self.row_axes else ""

    @cached_property
    def tasks(self) -> tuple[tuple[int, ...], ...]:
        """Column positions by task. Scores of the same models, as on several domains, are one task.

        A finished run without digests of its models equals no other run, and runs without a score tell nothing. Costs
        are grouped by runs: on fleets that differ only in their clocks, equal models take different times.
        """
        models = {} if self.metric.stage == "cost" else self._agreeing(_models)
        return _grouped(range(len(self.columns)), self._of_same_runs | models)

    @cached_property
    def same_models(self) -> list[list[TableRow]]:
        """Groups of rows whose runs are different but trained the same models on every column and seed."""
        groups: dict[frozenset[tuple[int, int, str]], dict[frozenset[str], TableRow]] = {}
        for row in self.rows:
            runs = [(i, run) for i, entry in enumerate(row.entries) if entry for run in entry.runs if run.models]
            if runs:
                models = frozenset((i, run.seed, run.models) for i, run in runs)
                groups.setdefault(models, {}).setdefault(frozenset(run.key for _, run in runs), row)
        return [list(rows.values()) for rows in groups.values() if len(rows) > 1]

    @cached_property
    def _of_same_runs(self) -> dict[int, int]:
        """The first column with the same runs, for later columns."""
        return self._agreeing(lambda run: run.key)

    def _agreeing(self, told: Callable[[SeedRun], str]) -> dict[int, int]:
        """Map each column to the earlier one whose competing runs all have the same `told` value.

        A bound may train the same models on columns that are different tasks for the other rows.
        """
        rows = [
            {
                i: {run.seed: said for run in entry.runs if (said := told(run))}
                for i, entry in enumerate(row.entries)
                if entry is not None
            }
            for row in [row for row in self.rows if not row.bound] or self.rows
        ]
        return statistics.same_tasks(range(len(self.columns)), rows)

    def scores(self, row: TableRow) -> dict[int, dict[int, float]]:
        """Return a row's outcomes by task (position in `tasks`) and seed, as means over the columns of a task.

        A run counts if it has all of its columns; of runs with the same models, some may be missing.
        """
        found = {}
        for task, columns in enumerate(self.tasks):
            outcomes: dict[int, list[float]] = {}
            for mine in _grouped(columns, self._of_same_runs):
                parts = [entry.outcomes(self.metric.better) for i in mine if (entry := row.entries[i]) is not None]
                for seed in set.intersection(*map(set, parts)) if len(parts) == len(mine) else ():
                    outcomes.setdefault(seed, []).extend(part[seed] for part in parts)
            found[task] = {seed: statistics.mean_of(outcomes[seed]) for seed in sorted(outcomes)}
        return {task: outcomes for task, outcomes in found.items() if outcomes}

    def alike(self, row: TableRow) -> dict[int, int]:
        """Map tasks to an earlier one on which a row scores the same models, as pooled training does on any partition.

        Its differences to another row on these tasks are then no independent evidence.
        """
        if self.metric.stage == "cost":
            return {}
        models = {
            task: {run.seed: run.models for run in entry.runs if run.models}
            for task, columns in enumerate(self.tasks)
            if (entry := row.entries[columns[0]]) is not None
        }
        told = [run for runs in models.values() for run in runs.items()]
        return statistics.same_tasks(models, [models]) if len(set(told)) < len(told) else {}

    @property
    def waits(self) -> bool:
        """Whether none of its cells has an outcome yet."""
        return not any(self._reached(i) for i, _ in enumerate(self.columns))

    @cached_property
    def begun(self) -> Tabulated:
        """The table restricted to columns with an outcome in some row, or the whole table if there are none."""
        return self if self.waits else self._of(i for i, _ in enumerate(self.columns) if self._reached(i))

    @cached_property
    def folded(self) -> Tabulated | None:
        """The table restricted to the other columns, which a page folds away; None without any."""
        rest = [i for i, _ in enumerate(self.columns) if not self._reached(i)]
        return None if self.waits or not rest else self._of(rest)

    def _reached(self, column: int) -> bool:
        entries = [row.entries[column] for row in self.rows]
        return any(entry is not None and entry.state != "missing" for entry in entries)

    def _of(self, columns: Iterable[int]) -> Tabulated:
        kept = list(columns)
        rows = [replace(row, entries=tuple(row.entries[i] for i in kept)) for row in self.rows]
        return replace(self, columns=tuple(self.columns[i] for i in kept), rows=tuple(rows))

    @cached_property
    def shown(self) -> tuple[TableRow, ...]:
        """The rows shown on a page: those with an outcome or a printed number, or all if there are none."""
        return tuple(row for row in self.rows if not row.waits) or self.rows

    @cached_property
    def waiting(self) -> tuple[TableRow, ...]:
        """The other rows, which a page only names."""
        return tuple(row for row in self.rows if row.waits) if len(self.shown) < len(self.rows) else ()

    @cached_property
    def costs(self) -> tuple[CostColumn, ...]:
        """The cost columns with a number in some row."""
        return () if self.metric.minus else cost_columns(row.cost for row in self.rows)

    @cached_property
    def asked(self) -> set[int]:
        """The different numbers of seeds that the grid asks for in a cell."""
        return {entry.asked for row in self.rows for entry in row.entries if entry}

    @property
    def why_untimed(self) -> str:
        """Why the times of its runs tell nothing about its rows; empty if they do."""
        if len(self.machines) > 1:
            return "machines differ"
        shared = any(row.cost.get("beside", 0) > 0 for row in self.rows)
        return "runs shared their machine with others" if shared else ""

    @property
    def computed(self) -> bool:
        """Whether the numbers are computed from shapes alone, without runs."""
        return self.metric.stage == STAGE

    @property
    def of_runs(self) -> bool:
        """Whether each number belongs to one cell's runs: neither computed from shapes nor a difference of cells."""
        return not self.computed and not self.metric.minus

    @property
    def caption(self) -> str:
        """A one-line explanation of the numbers and costs."""
        return " ".join(filter(None, (self.reading, "" if self.computed else self._about_costs())))

    @property
    def reading(self) -> str:
        """A one-line explanation of the numbers."""
        if self.computed:
            where = f" Printed: {self._sources()}; then ours minus printed." if self.printed else ""
            return f"{self.metric.heading}. {ASSUMES}{where}"
        seeds = self.asked
        if seeds == {1}:
            how = f"{self.metric.heading}, one seed"
        else:
            count = f"{min(seeds)}" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
            pairs = ", each minus that of the reference" if self.metric.minus else ""
            how = f"{self.metric.heading}: mean ± sample standard deviation over {count} seeds{pairs}"
        best = {+1: "the highest", -1: "the lowest"}.get(self.metric.better)
        but = " except bounds" if any(row.bound for row in self.rows) else ""
        entries = [entry for row in self.rows for entry in row.entries if entry]
        over = " over all seeds" if any(0 < entry.n < entry.asked for entry in entries) else ""
        bold = (
            f"; bold is {best} mean{over} of a column{but}, even if the lead is small"
            if best and len(self.rows) > 1
            else ""
        )
        scale = f" Scale: {', '.join(self.scales)}." if self.scales else ""
        return f"{how}{bold}.{scale}{self._printed()}"

    def _about_costs(self) -> str:
        about = ", ".join(column.about for column in self.costs)
        return f"Costs are means over a row's finished runs: {about}." if about else ""

    def _printed(self) -> str:
        shown = [entry.printed for row in self.rows for entry in row.entries if entry and entry.printed]
        if not shown:
            return ""
        where = self._sources()
        if set(self.scales) != {"paper"}:
            return f" Printed: {where}, at the scale paper, not comparable with this scale."
        return (
            f" Printed: {where}; then ours minus printed, and whether that lies within the combined "
            "spread, the root of the sum of both squared deviations (ours alone where none is printed)."
        )

    def _sources(self) -> str:
        values = " (where no difference is printed, that of the printed values)" if self.metric.minus else ""
        return "; ".join(self.printed) + values

    def shows_n(self, entry: TableCell) -> bool:
        """Return whether the cell shows its number of seeds, because it may differ from that in the caption."""
        return entry.n > 0 and (not entry.whole or len(self.asked) > 1)


def _grouped(columns: Iterable[int], same: Mapping[int, int]) -> tuple[tuple[int, ...], ...]:
    """Return the columns in groups; `same` maps columns to the first of their group."""
    found: dict[int, list[int]] = {}
    for i in columns:
        found.setdefault(same.get(i, i), []).append(i)
    return tuple(map(tuple, found.values()))
