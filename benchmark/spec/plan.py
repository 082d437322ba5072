"""Planned grids: every cell of a command line or a board, checked before anything runs."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.patience import doing
from fedspan.benchmark.registry import how_settings
from fedspan.benchmark.spec.board import Overrides, Point, load_board, product
from fedspan.benchmark.spec.cell import Cell
from fedspan.benchmark.spec.compose import Composer, default_choices
from fedspan.benchmark.spec.settings import FULL, How, first_change, is_how

Asked = TypeVar("Asked", bound=Overrides)


WRITTEN = ("paths.results", "paths.pages")  # folders to write to: a board from elsewhere may not choose them


@dataclass(frozen=True)
class PlannedCell:
    """A cell of a grid with its overrides; `full` is the corresponding cell at the board's full size.

    An `ablation` does not compete in rankings.
    """

    cell: Cell
    overrides: Overrides
    config: dict[str, Any]
    full: Cell | None = None
    ablation: bool = False

    @property
    def origin(self) -> Cell:
        """The corresponding cell at the full size, or the cell itself."""
        return self.full or self.cell


def plan(points: Sequence[Overrides]) -> list[PlannedCell]:
    """Return the distinct cells of a grid, in order, with every name and value checked."""
    planned: dict[str, PlannedCell] = {}
    composer = Composer()
    wholes = placed([point.full if isinstance(point, Point) else {} for point in points])
    for asked, whole in zip(placed(points), wholes, strict=True):
        overrides = {**asked, **composer.tuned(asked)}
        config = composer.resolve(overrides)
        cell = composer.make_cell(config)
        ablation = isinstance(asked, Point) and asked.ablation
        if cell.key not in planned:
            full = None if cell.scale in FULL or not whole else composer.cell(whole)
            planned[cell.key] = PlannedCell(cell, overrides, config, full=full, ablation=ablation)
        elif not ablation:
            planned[cell.key] = replace(planned[cell.key], ablation=False)
    return list(planned.values())


def _plan_whole(points: Sequence[Overrides]) -> list[PlannedCell]:
    """Return the cells of a whole grid; raise `UserError` if it sets something of an add-on that no cell uses."""
    planned = plan(points)
    used = {addon.name for one in planned for addon in one.cell.addons}
    for key in (key for point in points for key in point):
        if key.startswith("addon.") and (addon := key.split(".")[1]) not in used:
            raise UserError(f"'{key}' has no effect: no cell uses the add-on '{addon}'; add addons=[{addon}]")
    return planned


def placed(points: Sequence[Asked], alone: bool = True) -> list[Asked]:
    """Return the points without settings of places, such as dataset.source, that their plugins do not have.

    A setting that no plugin of the grid has is kept, so that composing reports it, unless the points are only a part of
    a grid (``alone=False``).
    """
    found = list(points)
    for setting, having in how_settings().items():
        kind = setting.partition(".")[0]
        asked = {i: point.get(kind, default_choices().get(kind)) for i, point in enumerate(found) if setting in point}
        if not alone or having.intersection(asked.values()):
            for i in (i for i, name in asked.items() if name not in having):
                found[i] = copy.copy(found[i])
                del found[i][setting]
    return found


def distinct(cells: Iterable[PlannedCell]) -> list[PlannedCell]:
    """Return each cell once, in order."""
    found: dict[str, PlannedCell] = {}
    for planned in cells:
        found.setdefault(planned.cell.key, planned)
    return list(found.values())


def check_images(cells: Sequence[PlannedCell]) -> None:
    """Raise `UserError` if no setting names the images of any of these cells; if only some lack them, they fail alone.

    Without cells nothing is missing.
    """
    if cells and all(planned.cell.dataset.unplaced() for planned in cells):
        cells[0].cell.dataset.load(How.of(cells[0].config).data)  # raises what each cell would fail with


def plan_grid(axes: Mapping[str, list[Any]]) -> list[PlannedCell]:
    """Return the cells of a command line: of its board, or of its sweeps."""
    names = axes.get("board", [None])
    rest = {key: values for key, values in axes.items() if key != "board"}
    if names == [None]:
        with doing("planning cells"):
            return _plan_whole(product(rest))
    points: list[Overrides] = []
    for board in (part for name in names for part in load_board(str(name)).parts()):
        points += [point.with_settings({"board": board.word}) for point in board.expand(rest)]
    _check_settings(names, points, rest)
    try:
        with doing(f"planning {len(points):,} cells"):
            planned = _plan_whole(points)
    except UserError as error:
        raise UserError(f"board {', '.join(map(str, names))}: {error}") from None
    if not first_change(rest):
        for name in names:
            _check_frozen(str(name), rest)
    return planned


def _check_settings(boards: Sequence[Any], points: Sequence[Overrides], given: Collection[str]) -> None:
    """Raise `UserError` if a board sets a mapping, a folder to write to, or several values of how to run.

    `given` are the settings of the command, which may name folders to write to.
    """
    said, asked = f"board {', '.join(map(str, boards))}", dict[str, Any]()
    for key, value in (item for point in points for item in point.items()):
        if isinstance(value, Mapping):
            first = next(iter(value), "name")
            raise UserError(f"{said}: '{key}' holds several settings; write them with dots, as {key}.{first}: ...")
        if key in WRITTEN and key not in given:
            raise UserError(f"{said}: '{key}' says where to write files; set it on the command line, not in a board")
        if is_how(key) and key != "board" and asked.setdefault(key, value) != value:
            hint = "set it on the command line instead"
            if key == "plugins":
                hint = "write a list of files as [[a.py, b.py]]"
            raise UserError(
                f"{said}: its cells differ in '{key}', which says how to run and takes one value for all of them; "
                f"{hint}"
            )


def _check_frozen(name: str, rest: Mapping[str, list[Any]]) -> None:
    """Raise `UserError` if the cells of a frozen board differ from those of its version."""
    for board in (part for part in load_board(name).parts() if part.frozen):
        # planned by itself: in a plan of several boards, a shared cell carries the first board's name
        mine = plan(placed(board.expand(rest), alone=False))
        for scale in {one.cell.scale for one in mine}:  # a new scale is a change too
            if digest_of_cells(one for one in mine if one.cell.scale == scale) != board.frozen.get(scale):
                raise UserError(
                    f"board '{board.name}' is frozen, but its cells are no longer those of its version: a protocol, "
                    "a piece or a plugin changed; check out the commit that froze it, or freeze a new version"
                )


def digest_of_cells(planned: Iterable[PlannedCell]) -> str:
    """Return a digest of the keys of some cells, independent of their order."""
    return hashlib.sha256(" ".join(sorted(one.cell.key for one in planned)).encode()).hexdigest()[:16]
