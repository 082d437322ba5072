"""A table on a terminal: best first, human names, columns that fit the width."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedspan.benchmark import names
from fedspan.benchmark.report.analysis import Analysis
from fedspan.benchmark.report.axes import in_words, title
from fedspan.benchmark.report.headline import of_table
from fedspan.benchmark.report.pages import place_text
from fedspan.benchmark.report.render_text import measured_text, printed_text
from fedspan.benchmark.report.table import TableCell, TableRow, Tabulated

WIDTH = 80  # if the terminal does not tell
AIR = 3  # spaces between two columns
LEAST = 28  # least width of the column of names


def show(table: Tabulated, analysis: Analysis | None, console: Console) -> None:
    """Print title and headline of a table, then the table in as many parts as its columns need, then help and notes."""
    rows = _ranked(table, analysis)
    heading = Text(f"Table {table.number}. {table.title}", style="bold")
    console.print(heading, highlight=False)
    if analysis and (said := of_table(analysis)):
        console.print(said, highlight=False, markup=False)
    for columns in _parts(table, rows, console.width):
        console.print(_grid(table, rows, columns), highlight=False)
    notes = [table.reading, *(f"[{mark}] {note}" for mark, note in table.notes), *table.remarks]
    for note in notes:
        console.print(Text(note, style="dim"), highlight=False)
    console.print()


def _ranked(table: Tabulated, analysis: Analysis | None) -> list[tuple[str, TableRow]]:
    """Return place and row, best first; the rest, unranked rows and bounds, follow in table order without a place."""
    if analysis is None:
        return [("", row) for row in table.rows]
    placed = [(place_text(standing.place, analysis.several), standing.row) for standing in analysis.standings]
    ranked = [id(row) for _, row in placed]
    return placed + [("", row) for row in table.rows if id(row) not in ranked]


def _parts(table: Tabulated, rows: Sequence[tuple[str, TableRow]], width: int) -> list[list[int]]:
    """Return the columns of each part: as many as fit beside the names."""
    left = max((len(place) for place, _ in rows), default=0)
    left += AIR + min(max((len(_name(table, row)) for _, row in rows), default=0), max(LEAST, width // 2))
    parts: list[list[int]] = [[]]
    used = left
    for i, _ in enumerate(table.columns):
        cells = [_cell(table, row.entries[i]) for _, row in rows]
        longest = max((len(line) for cell in cells for line in cell.plain.split("\n")), default=0)
        need = AIR + max(longest, *(len(word) for word in _heading(table, i).split()), 1)
        if used + need > width and parts[-1]:
            parts.append([])
            used = left
        parts[-1].append(i)
        used += need
    return parts


def _grid(table: Tabulated, rows: Sequence[tuple[str, TableRow]], columns: Sequence[int]) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    if any(place for place, _ in rows):
        grid.add_column("", no_wrap=True)
    grid.add_column(" · ".join(map(title, table.row_axes)), overflow="fold")
    for i in columns:
        grid.add_column(_heading(table, i), justify="right", overflow="fold")
    for place, row in rows:
        cells: list[Text | str] = [Text(place)] if len(grid.columns) > len(columns) + 1 else []
        grid.add_row(*cells, Text(_name(table, row)), *(_cell(table, row.entries[i]) for i in columns))
    return grid


def _name(table: Tabulated, row: TableRow) -> str:
    return " · ".join(names.of_axis_label(axis, label) for axis, label in zip(table.row_axes, row.labels, strict=True))


def _heading(table: Tabulated, column: int) -> str:
    pairs = zip(table.column_axes, table.columns[column], strict=True)
    return ", ".join(in_words(axis, label) for axis, label in pairs) or table.metric.label


def _cell(table: Tabulated, entry: TableCell | None) -> Text:
    if entry is None:
        return Text("")
    marks = f" [{','.join(entry.marks)}]" if entry.marks else ""
    text = Text(measured_text(table, entry) + marks, style="bold" if entry.best else "")
    if printed := printed_text(table, entry):
        text.append("\n" + printed.replace(", ", "\n"), style="not bold dim")
    return text
