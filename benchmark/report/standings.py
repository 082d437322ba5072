"""Standings of a board's methods from some records, and how other records change them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedspan.benchmark import names
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.selection import select
from fedspan.benchmark.report.analysis import analyse
from fedspan.benchmark.report.frame import collect
from fedspan.benchmark.report.pages import place_text
from fedspan.benchmark.report.tuning import Reported, tables_of
from fedspan.benchmark.spec.board import Board
from fedspan.benchmark.spec.plan import PlannedCell
from fedspan.benchmark.spec.studies import Study

UNDECIDED = "too few runs for a place"


@dataclass(frozen=True)
class ShownStanding:
    """A row's place and mean, as shown on its page; `place` says so if too few runs decide it."""

    place: str
    mean: str


Standings = Mapping[str, Mapping[str, ShownStanding]]  # table -> row -> place and mean


def standings(board: Board, cells: Sequence[PlannedCell], results: Results, studies: Sequence[Study] = ()) -> Standings:
    """Return the standings of each table's rows, best first; tables that cannot be made are left out.

    `studies` are those of a tuned board, whose methods also have rows with the settings chosen by their trials.
    """
    reported = Reported.of(cells, [select(study, results.read) for study in studies])
    found: dict[str, dict[str, ShownStanding]] = {}
    for number, table in tables_of(board.tables, collect(reported.cells, results), reported):
        if not isinstance(table, UserError) and (analysis := analyse(table)) is not None:
            found[f"Table {number}. {table.title}"] = {
                ", ".join(map(names.of_axis_label, table.row_axes, one.row.labels)): ShownStanding(
                    f"place {place_text(one.place, analysis.several)}" if one.place.tested else UNDECIDED,
                    table.metric.write(one.mean) if math.isfinite(one.mean) else "—",
                )
                for one in analysis.standings
            }
    return found


def changes(before: Standings, after: Standings) -> list[str]:
    """Return a line for each row whose place or mean changes, table by table, or one for a table without changes."""
    lines = []
    for table in dict.fromkeys([*after, *before]):
        known, rows = before.get(table, {}), after.get(table, {})
        lines.append(table)
        moved = [f"  {line}" for row, stand in rows.items() if (line := _change(row, known.get(row), stand))]
        moved += [f"  {row}: no longer ranked (was {known[row].place})" for row in known if row not in rows]
        lines += moved or ["  nothing changes"]
    return lines or ["no table has two rows to compare yet"]


def _change(row: str, before: ShownStanding | None, after: ShownStanding) -> str:
    if before is None:
        return f"{row}: new, {after.place} ({after.mean})"
    if before.place != after.place:
        return f"{row}: {before.place} -> {after.place} ({before.mean} -> {after.mean})"
    if before.mean != after.mean:
        return f"{row}: {after.place}, as before ({before.mean} -> {after.mean})"
    return ""
