"""The report of a board: everything that is made from its records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmark.board import Board, Planned
from benchmark.errors import UserError
from benchmark.files import write_atomically
from benchmark.record import Results
from benchmark.report import figures, render_text
from benchmark.report.axes import Axes
from benchmark.report.frame import collect
from benchmark.report.render_page import page
from benchmark.report.table import tabulate


@dataclass
class Report:
    """What was made: the files, the tables as Markdown for the terminal, and what is wrong with the records."""

    written: list[Path] = field(default_factory=list)
    markdown: str = ""
    problems: list[str] = field(default_factory=list)


def build(board: Board, cells: Sequence[Planned], results: Results, out: Path) -> Report:
    """Write ``out/<board>/index.html`` and its tables and figures from the records of `cells`.

    Records that must not be compared are left out and named in `problems`, and so is a table or a figure
    that cannot be made; the rest is still written. The same records give the same bytes. Raise `UserError`
    if the folder cannot be written.
    """
    report, folder = Report(), out / board.name
    frame, axes = collect(cells, results), Axes(cells)
    tables, drawings, problems = [], [], _Problems()
    for number, table in enumerate(board.tables, 1):
        try:
            tables.append(tabulate(frame, axes, table, number))
            problems.add(f"table {number}", tables[-1].problems)
        except UserError as error:
            problems.add(f"table {number}", [f"it is left out: {error}"])
    for number, figure in enumerate(board.figures, 1):
        try:
            drawings.append(figures.draw(frame, axes, figure, number))
            problems.add(f"figure {number}", drawings[-1].problems)
        except UserError as error:
            problems.add(f"figure {number}", [f"it is left out: {error}"])
    report.problems = problems.lines()

    contents: dict[str, bytes] = {}
    for made in tables:
        name = f"table-{made.number}"
        contents[f"{name}.md"] = render_text.to_markdown(made).encode()
        contents[f"{name}.csv"] = render_text.to_csv(made).encode()
        contents[f"{name}.tex"] = render_text.to_latex(made, f"tab:{board.name}-{made.number}").encode()
    for drawing in drawings:
        for suffix, content in figures.files(drawing).items():
            contents[f"figure-{drawing.number}.{suffix}"] = content
    contents["index.html"] = page(board, frame, tables, drawings, report.problems).encode()
    for name, content in contents.items():
        write_atomically(folder / name, content)
        report.written.append(folder / name)
    _remove_stale(folder, set(contents))
    report.markdown = "\n".join(contents[f"table-{made.number}.md"].decode() for made in tables)
    return report


class _Problems:
    """What is wrong, each said once with all the places that it concerns."""

    def __init__(self) -> None:
        self._places: dict[str, list[str]] = {}

    def add(self, place: str, problems: Iterable[str]) -> None:
        for problem in problems:
            self._places.setdefault(problem, []).append(place)

    def lines(self) -> list[str]:
        return [f"{', '.join(places)}: {problem}" for problem, places in self._places.items()]


def _remove_stale(folder: Path, written: set[str]) -> None:
    """Remove tables and figures of an earlier report that this one did not write."""
    for path in folder.iterdir():
        if re.fullmatch(r"(table-\d+\.(md|csv|tex)|figure-\d+\.(svg|pdf|png))", path.name) and path.name not in written:
            path.unlink()
