"""Tables from the tidy frame: mean and standard deviation over seeds, with everything missing reported."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import pandas as pd

from fedspan.benchmark.errors import did_you_mean
from fedspan.benchmark.report.arrange import REFUSED, Arranged, arrange
from fedspan.benchmark.report.axes import PARTS, Axes
from fedspan.benchmark.report.differences import reference_in_words, reference_name, subtract
from fedspan.benchmark.report.frame import BUSY, mean_cost
from fedspan.benchmark.report.metric import Metric
from fedspan.benchmark.report.printed import Printed, compare, differences, kind_of, printed_in
from fedspan.benchmark.report.table import SeedRun, TableCell, TableRow, Tabulated
from fedspan.benchmark.report.units import SHARED
from fedspan.benchmark.spec.board import Table
from fedspan.benchmark.training.costs import STAGE

BAD = ("failed", "diverged", "skipped", REFUSED, "missing")  # states of an empty cell, worst first


def tabulate(frame: pd.DataFrame, axes: Axes, table: Table, number: int) -> Tabulated:
    """Return a table of the board; raise `UserError` if it cannot be made."""
    printed = (*printed_in(table.printed), *(printed_in(table.printed, differences=True) if table.minus else ()))
    arranged = arrange(frame, axes, table)
    if table.metric.startswith(f"{STAGE}."):
        arranged.runs = _computed(arranged.runs)
    metric = _named(Metric.of(table.metric), table)
    metrics = _metrics(table.metric, arranged.runs, printed)
    runs, problems = _runs_of_metrics(arranged, metrics, axes, table)
    places: dict[tuple[Any, Any], list[Any]] = {}
    for run in runs.itertuples(index=False):
        places.setdefault((run.row, run.column), []).append(run)
    notes = _Notes()
    cells = {
        place: _with_printed(_cell(mine, mine[0].metric, notes), mine, table, printed, notes)
        for place, mine in places.items()
    }
    columns = tuple(dict.fromkeys(runs["column"]))
    filter_axes = tuple(part for name in table.rows for part in PARTS.get(name, (name,)))
    filters = zip(*(axes.labels(name, runs.index) for name in filter_axes), strict=True)
    rows = _rows(columns, places, cells, dict(zip(runs["row"], filters, strict=False)))
    finished = runs[(runs["state"] == "done") & (runs["status"] == "done")]
    machines = tuple(finished["device"].dropna().unique())
    if metric.timed and len(machines) > 1:
        metric = replace(metric, better=0)  # times on several kinds of machine give no ranking
    remarks = [*_shared(finished), *_several(machines, bool(finished["portable"].all()))]
    if printed and not any(cell.printed for cell in cells.values()):
        remarks.insert(0, _without_printed(table.metric, arranged.runs, printed))
    return Tabulated(
        number=number,
        title=table.title or metric.heading,
        metric=metric,
        minus=reference_name(table),
        row_axes=table.rows,
        column_axes=(*table.columns, *([_part(table.metric)] if metrics[0][1] else [])),
        filter_axes=filter_axes,
        columns=columns,
        rows=tuple(_mark_best(rows, metric)),
        notes=tuple(notes.found),
        remarks=tuple(remarks),
        problems=tuple(problems),
        scales=tuple(dict.fromkeys(runs.loc[runs["status"] != "missing", "scale"]))
        or tuple(dict.fromkeys(runs["scale"])),
        printed=tuple(dict.fromkeys(number.source for number in printed)),
        machines=machines,
    )


def _named(metric: Metric, table: Table) -> Metric:
    """Return the metric of a table's numbers: the difference to the reference if the table has one."""
    return metric.difference(reference_in_words(table), table.relative) if table.minus else metric


def _runs_of_metrics(
    arranged: Arranged, metrics: Sequence[tuple[Metric, tuple[str, ...]]], axes: Axes, table: Table
) -> tuple[pd.DataFrame, list[str]]:
    """Return the runs with the value of each metric, one metric after another, and the problems."""
    parts = [_with_values(arranged.runs, _named(metric, table), suffix) for metric, suffix in metrics]
    problems = [*arranged.problems]
    for (metric, _), found in zip(metrics, parts, strict=True):
        problems += _absent(found[found["state"] == "done"], metric)
    if table.minus:
        parts = [subtract(part, axes, table) for part in parts]
    return (pd.concat(parts) if len(parts) > 1 else parts[0]), problems


def _rows(
    columns: Sequence[tuple[str, ...]],
    places: Mapping[tuple[Any, Any], Sequence[Any]],
    cells: Mapping[tuple[Any, Any], TableCell],
    filters: Mapping[tuple[str, ...], tuple[str, ...]],
) -> list[TableRow]:
    """Return a row for each label of the runs, in grid order; `filters` holds the filter values of each row.

    A row of bounds counts as a `bound` only if other rows compete.
    """
    runs = {
        labels: [run for column in columns for run in places.get((labels, column), ())]
        for labels in dict.fromkeys(row for row, _ in places)
    }
    bounds = {labels for labels, mine in runs.items() if all(run.bound for run in mine)}
    return [
        TableRow(
            labels=labels,
            entries=tuple(cells.get((labels, column)) for column in columns),
            cost=mean_cost(_finished(mine)),
            filters=filters.get(labels, ()),
            bound=labels in bounds and len(bounds) < len(runs),
        )
        for labels, mine in runs.items()
    ]


def _several(machines: Sequence[str], portable: bool) -> list[str]:
    """Return remarks on finished runs from several kinds of machine; `portable` if all used portable numerics."""
    if len(machines) < 2:
        return []
    scores = "" if portable else ", and the same seed may give slightly different results"
    return [
        f"The runs come from {len(machines)} kinds of machine: {', '.join(machines)}. "
        f"Times are not comparable across machines{scores}."
    ]


def _computed(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per point, with its computed costs instead of the scores of its seeds."""
    points = runs.drop_duplicates("point")
    known = points["computed"].map(lambda costs: isinstance(costs, dict))
    return points.assign(
        status=STAGE,
        state=known.map({True: "done", False: "skipped"}),
        reason=points["computed"].where(~known, ""),
        stages=points["computed"].map(lambda costs: {STAGE: costs} if isinstance(costs, dict) else {}),
    )


def _finished(runs: Iterable[Any]) -> list[Any]:
    return [run for run in runs if run.state == "done" and run.status == "done"]


def _shared(done: pd.DataFrame) -> list[str]:
    """Return remarks on finished runs with a shared machine, waits for a processor, or several workers."""
    runs = done.drop_duplicates("key")
    spread = int((runs["workers"] > 1).sum())
    beside, waited = runs["beside"], int((runs["waited"] & (runs["workers"] == 1)).sum())
    timed = beside[runs["seconds"].notna()]
    count, most, unknown = int((timed > 0).sum()), timed.max(), int(beside.isna().sum())
    said = []
    if count:
        cells = "1 other cell" if most == 1 else f"up to {most:.0f} other cells"
        said.append(
            f"{SHARED.strip()} {count} of {len(beside)} runs shared their machine with {cells}: "
            "their seconds are longer than those of a run alone."
        )
    if waited:
        said.append(
            f"The seconds of {waited} of {len(runs)} runs are left out: the machine had other work, "
            f"and they had a processor for less than {100 * BUSY:.0f} % of their time."
        )
    if spread:
        said.append(f"The seconds of {spread} of {len(runs)} runs are left out: several workers shared each run.")
    if unknown:
        said.append(
            f"Whether a run shared its machine with others is not recorded for {unknown} of {len(beside)} runs."
        )
    return said


def _metrics(path: str, runs: pd.DataFrame, printed: Sequence[Printed]) -> list[tuple[Metric, tuple[str, ...]]]:
    """Return the table's metric; for ``stage.name.*`` all such metrics in the records, or else the printed ones."""
    if not path.endswith(".*"):
        return [(Metric.of(path), ())]
    start = path[:-1]
    found = [f"{stage}.{name}" for stages in runs["stages"] for stage, scores in stages.items() for name in scores]
    names = [name for name in found if name.startswith(start)] or _printed_metrics(start, runs, printed)
    if not names:
        return [(Metric.of(path.removesuffix(".*")), ("all",))]
    return [(Metric.of(name), (name.removeprefix(start),)) for name in dict.fromkeys(names)]


def _printed_metrics(start: str, runs: pd.DataFrame, printed: Sequence[Printed]) -> list[str]:
    """Return the metrics beginning with `start` that the papers print for these runs."""
    mine = (number.metric for number in printed if any(number.belongs_to(what) for what in runs["paper"]))
    return list(dict.fromkeys(name for name in mine if name.startswith(start)))


def _without_printed(path: str, runs: pd.DataFrame, printed: Sequence[Printed]) -> str:
    """Return why the table has no printed number: other settings, or other names of parts (stand-in data)."""
    start = path.removesuffix("*")
    names = [name.removeprefix(start) for name in _printed_metrics(start, runs, printed)] if start != path else []
    whose = f"; its {_part(path)}s are {', '.join(names)}" if names else ""
    return f"No number in {'; '.join(dict.fromkeys(n.source for n in printed))} matches these cells{whose}."


def _part(path: str) -> str:
    """Return the axis name of the columns of ``stage.name.*``: ``domain`` for ``trained.domain_accuracy.*``."""
    return path.split(".")[-2].removesuffix("_accuracy")


def _with_values(runs: pd.DataFrame, metric: Metric, suffix: tuple[str, ...]) -> pd.DataFrame:
    """Add the metric, whether each run has it, and its value if the run is done; append `suffix` to the column."""
    holders, values = zip(*(metric.find(stages) for stages in runs["stages"]), strict=True)
    value = pd.Series(values, index=runs.index, dtype="float64").where(runs["state"] == "done")
    column = pd.Series([(*labels, *suffix) for labels in runs["column"]], index=runs.index, dtype=object)
    return runs.assign(
        holds=holders,
        value=value,
        metric=pd.Series([metric] * len(runs), index=runs.index, dtype=object),
        column=column,
    )


def _with_printed(
    entry: TableCell, runs: list[Any], table: Table, printed: Sequence[Printed], notes: _Notes
) -> TableCell:
    """Put the number printed for this cell beside ours; only runs at scale `paper` and computed costs are compared."""
    run, metric = runs[0], runs[0].metric
    computed = metric.stage == STAGE
    ours = (entry.mean, entry.std) if computed or run.scale == "paper" else (None, None)
    if table.minus:
        printed = differences(table.printed, run.paper, run.reference, kind_of(table))
    names = (metric.path, f"cost.{metric.name}") if computed else (metric.path,)  # papers have either name
    found = compare(printed, names, run.paper, *ours)
    if found is None:
        return entry
    if computed and entry.mean is not None and found.printed.value is not None:
        same = found.printed.is_rounded_from(entry.mean)
        found = replace(found, within=same)
        if not same:
            why = found.printed.note or "no reason is recorded"
            entry = replace(entry, marks=(*entry.marks, notes.mark(f"{found.printed.source}: {why}")))
    said = [_other(other, metric) for other in found.others if other.value is not None]
    if found.printed.value is None:
        said.append(f"{found.printed.source}: {found.printed.note}")
    return replace(entry, printed=found, marks=_in_order((*entry.marks, *map(notes.mark, said))))


def _other(other: Printed, metric: Metric) -> str:
    """Return the text about another number printed for the same cell."""
    assert other.value is not None
    if metric.minus:
        return f"{other.source}{': its values differ by' if other.derived else ' prints'} {metric.write(other.value)}"
    return f"{other.source} prints {other.value:g}"


def _absent(done: pd.DataFrame, metric: Metric) -> list[str]:
    """Return a problem if finished records lack the score."""
    lacking = done[~done["holds"]]
    if lacking.empty:
        return []
    path = metric.path
    known = {f"{stage}.{name}" for stages in done["stages"] for stage, metrics in stages.items() for name in metrics}
    hint = did_you_mean(path, known) if len(lacking) == len(done) else f" (first: {lacking['key'].iloc[0]})"
    return [f"{len(lacking)} of {len(done)} finished records have no {path}{hint}"]


class _Notes:
    """Footnotes: one mark per distinct reason."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        self._marks: dict[str, str] = {}

    def mark(self, note: str) -> str:
        if note not in self._marks:
            self._marks[note] = letters(len(self._marks))
            self.found.append((self._marks[note], note))
        return self._marks[note]


def letters(number: int) -> str:
    """Return a, b, ..., z, aa, ab, ... for 0, 1, ..."""
    head, last = divmod(number, 26)
    return (letters(head - 1) if head else "") + chr(ord("a") + last)


def _cell(runs: list[Any], metric: Metric, notes: _Notes) -> TableCell:
    values = [float(run.value) for run in runs if not math.isnan(run.value)]
    asked = len({run.seed for run in runs})
    holds = all(run.holds for run in runs if run.state == "done")
    return TableCell(
        state=_state(runs, bool(values), holds),
        mean=fmean(values) if values else None,
        std=stdev(values) if len(values) > 1 else None,
        n=len(values),
        asked=asked,
        cost=mean_cost(_finished(runs)),
        runs=tuple(map(_seed_run, sorted(runs, key=lambda run: run.seed))),
        point=runs[0].point,
        marks=_marks(runs, len(values) < asked, holds, metric, notes),
    )


def _state(runs: Sequence[Any], valued: bool, holds: bool) -> str:
    """Return the state of a table cell; `holds` tells whether all finished records have the score."""
    states = {run.state for run in runs}
    if valued:
        return "value"
    if "done" in states:
        return "n/a" if holds else "absent"
    return next(bad for bad in BAD if bad in states)


def _marks(runs: Sequence[Any], lacking: bool, holds: bool, metric: Metric, notes: _Notes) -> tuple[str, ...]:
    """Return the note marks of a table cell: why seeds are `lacking`, and doubts about the runs behind its number."""
    said: list[str] = []
    if lacking:
        found = [run for run in runs if run.state not in ("done", "missing")]
        said += [f"{run.state}: {run.reason}" if run.reason else run.state for run in found]
        if not holds:
            said.append(f"finished, but without {metric.path}")
    if any(run.badge.state in ("refuted", "mixed") for run in runs):
        said.append("a run could not be reproduced on some machine: see its page")
    if _several_versions(runs):
        said.append("its runs were made by several versions of the sources: see their pages")
    return _in_order(map(notes.mark, said))


def _several_versions(runs: Sequence[Any]) -> bool:
    """Return whether the runs with a value come from several versions of their sources."""
    valued = [run for run in runs if not math.isnan(run.value)]
    return len({run.sources if run.stale else () for run in valued}) > 1


def _in_order(marks: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(marks), key=lambda mark: (len(mark), mark)))


def _seed_run(run: Any) -> SeedRun:
    return SeedRun(
        seed=run.seed,
        key=run.key,
        status=run.state,
        reason=run.reason,
        command=run.command,
        value=None if math.isnan(run.value) else run.value,
        repeated=run.repeated,
        models=run.models,
    )


def _mark_best(rows: list[TableRow], metric: Metric) -> list[TableRow]:
    """Mark the best mean of each column, and the means that tie with it as written.

    Only whole cells compete: a mean over some of the seeds may be too good, for example if one diverged. Bounds do not.
    """
    if not metric.better or len(rows) < 2:
        return rows
    marked = [list(row.entries) for row in rows]
    for i in range(len(rows[0].entries)):
        mine = [row.entries[i] for row in rows if not row.bound]
        competing = [entry for entry in mine if entry is not None and entry.mean is not None and entry.whole]
        if not competing:
            continue
        best = metric.write(
            metric.better * max(metric.better * entry.mean for entry in competing if entry.mean is not None)
        )
        for entries in marked:
            entry = entries[i]
            if entry in competing and entry is not None and entry.mean is not None and metric.write(entry.mean) == best:
                entries[i] = replace(entry, best=True)
    return [replace(row, entries=tuple(entries)) for row, entries in zip(rows, marked, strict=True)]
