"""Checks of the tables and figures that boards declare, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.report.axes import DEFAULT, TUNED, TUNING, Axes, choices_of, kept_axes
from fedspan.benchmark.report.metric import check_metric
from fedspan.benchmark.spec.board import Board, Figure, Table, load_board
from fedspan.benchmark.spec.plan import PlannedCell, placed, plan
from fedspan.benchmark.spec.settings import is_how, is_place

SCORED = ("sweep", "bars")  # kinds of figures that show a metric


def check_declared(axes: Mapping[str, Sequence[Any]]) -> None:
    """Raise `UserError` if a board of a command line declares a table or figure that no record can fill.

    Either its metric cannot exist, or no full-size cell has its axis or label, whatever the command line changes.
    """
    how = {name: values for name, values in axes.items() if name != "board" and (is_how(name) or is_place(name))}
    for board in (part for name in axes.get("board", ()) for part in load_board(str(name)).parts()):
        try:
            cells = plan(placed(board.expand(how), alone=False))
        except UserError:
            continue  # perhaps of a dataset that the command line replaces
        known, everything = _axes(board, cells)
        for place, part in _parts(board):
            try:
                _check(part, known, everything)
            except UserError as error:
                raise UserError(f"board {board.word}: {place}: {error}") from None


def _parts(board: Board) -> Iterator[tuple[str, Table | Figure]]:
    """Yield the tables and figures of a board, each with its name on the page."""
    for number, table in enumerate(board.tables, 1):
        yield f"table {number}", table
    for number, figure in enumerate(board.figures, 1):
        yield f"figure {number}", figure


def _axes(board: Board, cells: Sequence[PlannedCell]) -> tuple[Axes, range]:
    """Return the axes of a board's page and the positions of its rows; a tuned board has each cell twice."""
    if board.tune is None:
        return Axes(cells), range(len(cells))
    tuning = [DEFAULT] * len(cells) + [TUNED] * len(cells)
    return Axes([*cells, *cells], {TUNING: tuning}), range(len(tuning))


def _check(part: Table | Figure, axes: Axes, cells: Sequence[int]) -> None:
    """Raise `UserError` if a part of a board with these axes and cells, by position, cannot be made of any records."""
    if isinstance(part, Table) or part.kind in SCORED:
        check_metric(part.metric)
    for field in ("where", "minus"):
        for axis, wanted in getattr(part, field, {}).items():
            for one in choices_of(wanted):
                if one != "":  # frozen boards list an empty label beside none
                    axes.select(field, {axis: one}, cells)
    shown = axes.select("where", part.where, cells)
    for axis in (*part.rows, *part.columns, *([part.x] if isinstance(part, Figure) and part.x else ())):
        axes.labels(axis, shown)
    if isinstance(part, Table) and part.minus:
        kept_axes(part)
        axes.select("minus", part.minus, shown)
