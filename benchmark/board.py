"""Boards: one YAML file declares a grid of cells and the tables and figures made of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmark.cell import Cell
from benchmark.config import SCALES, make_cell, resolve, tuned, yaml_files
from benchmark.config import load_yaml as load_mapping
from benchmark.errors import UserError, did_you_mean
from benchmark.registry import build

Overrides = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A table over the board's cells.

    `rows` and `columns` name axes of the spec: `method`, `algorithm`, `addons`, `partition`, `clients`, ... or
    a dotted path. `metric` is ``stage.metric`` of the record's scores. `where` keeps the cells whose label along
    an axis is the given value or among the given values.
    """

    title: str = ""
    rows: tuple[str, ...] = ("method",)
    columns: tuple[str, ...] = ("partition",)
    metric: str = "trained.accuracy"
    where: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """`accuracy`: accuracy per round; `spectrum`: singular values. One panel per column, one line per row."""

    kind: Literal["accuracy", "spectrum"] = "accuracy"
    title: str = ""
    rows: tuple[str, ...] = ("method",)
    columns: tuple[str, ...] = ("partition",)
    where: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Board:
    """A named grid with its tables and figures; `expand` gives the cells."""

    name: str
    title: str
    description: str
    base: Overrides
    grid: tuple[Overrides, ...]
    scales: dict[str, Overrides]
    tables: tuple[Table, ...] = field(default=(Table(),))
    figures: tuple[Figure, ...] = field(default=())

    def expand(self, extra: Mapping[str, Any] | None = None) -> list[Overrides]:
        """Return the overrides of every cell. `extra` (key -> list of values) replaces axes of the same name.

        With ``scale=NAME`` in `extra`, the overrides of that scale apply to every cell.
        """
        extra = dict(extra or {})
        expanded: list[Overrides] = []
        for sub_grid in self.grid:
            for point in product(self.base | sub_grid):
                for choice in product(extra):
                    scale = choice.get("scale", point.get("scale", "paper"))
                    if scale not in SCALES:
                        raise UserError(f"unknown scale '{scale}'{did_you_mean(str(scale), SCALES)}")
                    if scale != "paper" and scale not in self.scales:
                        known = ", ".join(["paper", *self.scales])
                        raise UserError(f"board '{self.name}' declares no scale '{scale}'; it has {known}")
                    merged = point | self.scales.get(scale, {}) | choice
                    if merged not in expanded:
                        expanded.append(merged)
        if not expanded:
            raise UserError(f"board '{self.name}' has an empty grid")
        return expanded


def product(axes: Mapping[str, Any]) -> list[Overrides]:
    """Expand one sub-grid.

    A list is an axis. A list of mappings is an axis whose points set several keys at once; its own name is
    only a label. A plain value and an empty list are fixed.
    """
    choices: list[list[Overrides]] = []
    for key, value in axes.items():
        if not isinstance(value, (list, tuple)) or not value:
            choices.append([{key: value}])
        elif value and all(isinstance(item, Mapping) for item in value):
            choices.append([dict(item) for item in value])
        else:
            choices.append([{key: item} for item in value])
    return [{k: v for part in point for k, v in part.items()} for point in itertools.product(*choices)]


def load_board(name: str) -> Board:
    """Return a board by its name in `leaderboards/boards`, or by the path of a YAML file."""
    known = yaml_files("boards")
    path = Path(name) if name.endswith((".yaml", ".yml")) else known.get(name)
    if path is None or not path.is_file():
        raise UserError(f"unknown board '{name}'{did_you_mean(name, known)}")
    return read_board(path)


def read_board(path: Path) -> Board:
    """Return the board of a YAML file; raise `UserError` naming the file and what is wrong."""
    raw = load_mapping(path)
    fields = {"title", "description", "base", "grid", "scales", "tables", "figures"}
    for key in raw:
        if key not in fields:
            raise UserError(f"{path}: unknown field '{key}'{did_you_mean(key, fields)}")
    base, scales = raw.get("base") or {}, raw.get("scales") or {}
    grid = raw.get("grid") or [{}]
    for where, value, kind in (("base", base, dict), ("scales", scales, dict), ("grid", grid, list)):
        if not isinstance(value, kind):
            raise UserError(f"{path}: {where} must be a {'mapping' if kind is dict else 'list of mappings'}")
    for where, value in (
        *((f"grid[{i}]", v) for i, v in enumerate(grid)),
        *((f"scales.{k}", v) for k, v in scales.items()),
    ):
        if not isinstance(value, dict):
            raise UserError(f"{path}: {where} must be a mapping, got {value!r}")
    for scale in scales:
        if scale not in SCALES:
            raise UserError(f"{path}: unknown scale '{scale}'{did_you_mean(str(scale), SCALES)}")
    return Board(
        name=path.stem,
        title=str(raw.get("title") or path.stem),
        description=str(raw.get("description") or "").strip(),
        base=base,
        grid=tuple(grid),
        scales=scales,
        tables=_parts(Table, raw.get("tables"), f"{path}: tables") or (Table(),),
        figures=_parts(Figure, raw.get("figures"), f"{path}: figures"),
    )


def _parts(cls: type[Any], raw: Any, where: str) -> tuple[Any, ...]:
    if raw is None:
        return ()
    if not isinstance(raw, list) or not all(isinstance(item, dict) for item in raw):
        raise UserError(f"{where} must be a list of mappings")
    return tuple(build(cls, item, f"{where}[{i}]") for i, item in enumerate(raw))


@dataclass(frozen=True)
class Planned:
    """A cell of a grid with the overrides that make it."""

    cell: Cell
    overrides: Overrides
    config: dict[str, Any]


def plan(points: Sequence[Overrides]) -> list[Planned]:
    """Return the distinct cells of a grid in its order; every name and value is checked before anything runs."""
    planned: dict[str, Planned] = {}
    used: set[str] = set()
    for asked in points:
        overrides = {**asked, **tuned(asked)}
        config = resolve(overrides)
        cell = make_cell(config)
        used |= {addon.name for addon in cell.addons}
        planned.setdefault(cell.key, Planned(cell, overrides, config))
    for overrides in points:
        for key in overrides:
            parts = key.split(".")
            if parts[0] == "addon" and len(parts) > 1 and parts[1] not in used:
                raise UserError(f"'{key}' is set, but '{parts[1]}' is in no cell's addons; add addons=[{parts[1]}]")
    return list(planned.values())
