"""Boards: one YAML file declares a grid of cells and the tables and figures made of them."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedspan.benchmark.errors import UserError, did_you_mean
from fedspan.benchmark.fields import from_values
from fedspan.benchmark.spec.compose import fitting, kept, resolve
from fedspan.benchmark.spec.presets import SettingRule, applies, load_yaml, setting_rules, yaml_files
from fedspan.benchmark.spec.settings import SCALES, What, check_scale, is_how, is_place
from fedspan.benchmark.spec.shown import Figure, Table
from fedspan.benchmark.spec.tuning import Tune, tuning_settings

Overrides = dict[str, Any]

MOST_PIECES = 5  # most pieces that a file extends, and most links in a chain of `extends`
MOST_CELLS = 1_000_000  # of one grid
ABLATION = "ablation"  # a mark among the settings of `base`, a sub-grid or a point of an axis; not a setting


class Point(Overrides):
    """The overrides of a cell; `full` are those of the corresponding cell at the board's full size.

    An `ablation` explains a method or a paper and does not compete in rankings.
    """

    def __init__(self, overrides: Overrides, full: Overrides, ablation: bool = False) -> None:
        super().__init__(overrides)
        self.full = full
        self.ablation = ablation

    def with_settings(self, settings: Mapping[str, Any]) -> Point:
        """Return the point with additional settings that say how to run."""
        return Point({**self, **settings}, self.full, self.ablation)


@dataclass(frozen=True)
class Scale:
    """The changes of a scale: `settings` for every cell (a list is an axis), and tuned `rules` for some cells.

    Settings in `keep` stay as the grid declares them; `tune` changes how the board tunes.
    """

    settings: Overrides = field(default_factory=dict)
    rules: tuple[SettingRule, ...] = ()
    keep: tuple[str, ...] = ()
    tune: Overrides = field(default_factory=dict)

    def __or__(self, later: Scale) -> Scale:
        """Return the union: settings of `later` override ours, its rules follow ours."""
        rules, keep = (*self.rules, *later.rules), (*self.keep, *later.keep)
        return Scale(self.settings | later.settings, rules, keep, self.tune | later.tune)

    def of(self, point: Overrides) -> list[Overrides]:
        """Return the points of a full-size cell at this scale.

        Later rules override earlier ones and `settings`. Replacing a plugin removes its settings but those in `keep`.
        """
        config = resolve({key: value for key, value in point.items() if not is_place(key)}) if self.rules else {}
        changes = dict(self.settings)
        for rule in self.rules:
            if applies(rule, config):
                changes |= rule.set
        changes = {key: value for key, value in changes.items() if key not in self.keep}
        return [kept(point, choice, self.keep) | choice for choice in product(changes)]


@dataclass(frozen=True)
class Board:
    """A named grid with its tables and figures; `expand` returns its cells. A board with `boards` is their union.

    `printed` names the reproduced figures of papers, such as ``paper/figure_4``, in addition to its tables' sources.
    With `tune`, methods are tuned first (`spec.studies`), and `expand` returns the cells with the defaults. `frozen`
    holds the cell digests of a frozen version, by scale; `path` is set for a file outside the folders of boards, and
    `sweep` holds the settings of a command line that names no board.
    """

    name: str
    title: str
    description: str
    base: Overrides
    grid: tuple[Overrides, ...]
    scales: dict[str, Scale]
    tables: tuple[Table, ...] = field(default=(Table(),))
    figures: tuple[Figure, ...] = field(default=())
    boards: tuple[str, ...] = field(default=())
    printed: tuple[str, ...] = field(default=())
    tune: Tune | None = None
    frozen: Mapping[str, str] = field(default_factory=dict)
    path: str = ""
    sweep: str = ""

    @property
    def word(self) -> str:
        """The value of ``board=`` for it: its name, or the path of a file outside the folders of boards."""
        return self.path or self.name

    @property
    def own(self) -> bool:
        """Whether it is a file or a sweep of the user's own, outside the folders of boards."""
        return bool(self.path or self.sweep)

    @property
    def lineage(self) -> str:
        """The name of the board of which this is a frozen version, or its own name."""
        return re.sub(r"-v\d+$", "", self.name) if self.frozen else self.name

    @property
    def sources(self) -> tuple[str, ...]:
        """The printed tables and figures that it reproduces; empty for a recipe from no paper."""
        found = (*self.printed, *(source for table in self.tables for source in table.printed))
        return tuple(dict.fromkeys(found))

    @property
    def full(self) -> str:
        """The name of the full size, which is the grid as declared: `paper` if it reproduces a paper, else `own`."""
        return "paper" if self.sources else "own"

    def parts(self) -> list[Board]:
        """Return the boards of the union, each once, or the board itself."""
        if not self.boards:
            return [self]
        found = [load_board(name) for name in dict.fromkeys(self.boards)]
        if nested := next((part.name for part in found if part.boards), None):
            raise UserError(f"board '{self.name}': '{nested}' is itself made of boards; name those instead")
        return found

    def expand(self, extra: Mapping[str, Any] | None = None) -> list[Point]:
        """Return the overrides of every cell. `extra` (key -> list of values) replaces axes of the same name.

        Settings of a replaced plugin are dropped. With ``scale=NAME`` in `extra`, the overrides of that scale apply to
        every cell. Otherwise a cell has the scale that the grid states, as in a retry, or the full size.
        """
        if self.boards:
            return _distinct(point for part in self.parts() for point in part.expand(extra))
        tuning, extra = tuning_settings(extra or {})
        if tuning and self.tune is None:
            raise UserError(f"board '{self.name}' does not tune; leave out '{next(iter(tuning))}'")
        expanded: list[Point] = []
        for point in (point for sub_grid in self.grid for point in product(self.base | sub_grid)):
            ablation = self._ablation(point.pop(ABLATION, False))
            for choice in product(extra):
                name = str(choice.get("scale", point.get("scale", self.full)))
                scale = self.scales.get(name, Scale()) if name == point.get("scale") else self.scale(name)
                named, asked = _of_scale(name), {key: value for key, value in choice.items() if key != "scale"}
                full = kept(point, asked)
                full |= fitting(asked, full | asked)
                whole = {key: value for key, value in full.items() if not is_how(key)} | _of_scale(self.full)
                expanded += [Point(scaled | named | choice, whole, ablation) for scaled in scale.of(full)]
        if not expanded:
            raise UserError(f"board '{self.name}' has an empty grid")
        return _distinct(expanded)

    def _ablation(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise UserError(f"board '{self.name}': {ABLATION} must be true or false, got {value!r}")
        return value

    def scale(self, name: str) -> Scale:
        """Return a scale of the board; raise `UserError` if it has none of that name."""
        check_scale(name)
        if name != self.full and name not in self.scales:
            known = ", ".join(dict.fromkeys([self.full, *self.scales]))
            why = "" if self.sources or name != "paper" else ": it names nothing printed that it reproduces"
            raise UserError(f"board '{self.name}' declares no scale '{name}'{why}; it has {known}")
        return self.scales.get(name, Scale())


def _of_scale(name: str) -> Overrides:
    """Return the override that selects a scale; the default needs none."""
    return {} if name == What().scale else {"scale": name}


def _distinct(points: Iterable[Point]) -> list[Point]:
    """Return each point once; it is an ablation only if all its occurrences are."""
    found: dict[str, Point] = {}
    for point in points:
        known = found.setdefault(json.dumps(point, sort_keys=True), point)
        known.ablation = known.ablation and point.ablation
    return list(found.values())


def product(axes: Mapping[str, Any]) -> list[Overrides]:
    """Expand one sub-grid.

    A list is an axis. A list of mappings is an axis whose points set several keys at once; its own name is
    only a label. A plain value and an empty list are fixed.
    """
    choices: list[list[Overrides]] = []
    for key, value in axes.items():
        if not isinstance(value, (list, tuple)) or not value:
            choices.append([{key: value}])
        elif all(isinstance(item, Mapping) for item in value):
            choices.append([dict(item) for item in value])
        else:
            choices.append([{key: item} for item in value])
    if (cells := math.prod(map(len, choices))) > MOST_CELLS:
        raise UserError(f"a grid of {cells:,} cells is too large; at most {MOST_CELLS:,} can be planned")
    return [{k: v for part in point for k, v in part.items()} for point in itertools.product(*choices)]


def board_files() -> dict[str, Path]:
    """Return the YAML files of all boards by name, including frozen versions."""
    return {**yaml_files("frozen"), **yaml_files("boards")}


def load_board(name: str) -> Board:
    """Return a board by its name in `leaderboards/boards`, or by the path of a YAML file."""
    known = board_files()
    if not name.endswith((".yaml", ".yml")):
        if name not in known:
            hint = f"; did you mean {name}.yaml?" if Path(f"{name}.yaml").is_file() else did_you_mean(name, known)
            raise UserError(f"unknown board '{name}'{hint}")
        return read_board(known[name])
    path = Path(name)
    if not path.is_file():
        here = "" if path.is_absolute() else f" in {Path.cwd()}"
        hint = f"; did you mean board={path.stem}?" if path.stem in known else ""
        raise UserError(f"there is no board file {name}{here}{hint}")
    if path.stem in known and os.path.realpath(path) != os.path.realpath(known[path.stem]):
        raise UserError(f"{name}: this board would replace the page of board '{path.stem}'; rename the file")
    return read_board(path) if path.stem in known else replace(read_board(path), path=name)


FIELDS = {"title", "description", "base", "grid", "scales", "tables", "figures"}
FIELDS |= {"extends", "boards", "printed", "tune", "frozen"}
SITE_FOLDERS = ("methods", "datasets", "partitions", "runs", "records", "sweep")  # of other pages than boards
PIECE_FIELDS = {"base", "scales", "axes", "tables", "extends"}


def read_board(path: Path) -> Board:
    """Return the board of a YAML file; raise `UserError` naming the file and what is wrong.

    ``extends: NAME`` inherits base, scales, tables and named axes from ``leaderboards/pieces/NAME.yaml``;
    ``extends: [A, B]`` from A and then B, which overrides A. ``$name`` as the value of an axis is the axis of that
    name. ``boards: [...]`` makes a union of other boards. ``ablation: true`` in `base`, a sub-grid or a point of an
    axis marks rows that do not compete in rankings. ``tune: {trials: 12, ...}`` tunes the methods (`spec.tuning.Tune`).
    """
    if not re.fullmatch(r"\w[\w-]*", path.stem) or path.stem in SITE_FOLDERS:
        raise UserError(f"{path}: a board is named by letters, digits, _ and -, and not {', '.join(SITE_FOLDERS)}")
    raw = _mapping(path, FIELDS)
    shared = _pieces(raw.pop("extends", None), path, set()) | _piece(raw, path)
    grid = _section(raw, "grid", list, path)
    for number, sub_grid in enumerate(grid):
        if not isinstance(sub_grid, dict):
            raise UserError(f"{path}: grid[{number}] must be a mapping, got {sub_grid!r}")
    boards, printed = (tuple(map(str, _section(raw, name, list, path))) for name in ("boards", "printed"))
    if boards and set(raw) - {"title", "description", "boards"}:
        raise UserError(f"{path}: a board of boards has a title, a description and boards, nothing else")
    board = Board(
        name=path.stem,
        title=" ".join(str(raw.get("title") or path.stem).split()),
        description=str(raw.get("description") or "").strip(),
        base=_with_axes(shared.base, shared.axes, path),
        grid=tuple(_with_axes(sub_grid, shared.axes, path) for sub_grid in grid or [{}]),
        scales=shared.scales,
        tables=() if boards else shared.tables or (Table(),),
        figures=_parts(Figure, raw.get("figures"), f"{path}: figures"),
        boards=boards,
        printed=printed,
        tune=_tune(raw["tune"], path) if "tune" in raw else None,
        frozen={str(scale): str(digest) for scale, digest in _section(raw, "frozen", dict, path).items()},
    )
    if "paper" in board.scales and not board.sources and not boards:
        raise UserError(f"{path}: scales.paper is for boards that reproduce printed numbers; add printed")
    declared = set(_names([board.base, *board.grid]))
    for name, scale in board.scales.items():
        known = {*declared, *scale.settings, *(key for rule in scale.rules for key in rule.set)}
        if idle := next((key for key in scale.keep if key not in known), None):
            raise UserError(f"{path}: scales.{name}.keep: nothing sets '{idle}'{did_you_mean(idle, known)}")
        if scale.tune and board.tune is None:
            raise UserError(f"{path}: scales.{name}: {next(iter(scale.tune))} is for boards that tune; add tune")
    if not (boards or board.base or grid):
        raise UserError(f"{path}: it declares no cells; add base, grid or boards")
    return board


def _names(values: Any) -> Iterator[str]:
    """Yield the names of all settings in a grid, including those within axes."""
    for value in values.values() if isinstance(values, Mapping) else values if isinstance(values, list) else ():
        yield from _names(value)
    if isinstance(values, Mapping):
        yield from values


@dataclass(frozen=True)
class Pieces:
    """Declarations shared by several boards."""

    base: Overrides = field(default_factory=dict)
    scales: dict[str, Scale] = field(default_factory=dict)
    axes: dict[str, Any] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()

    def __or__(self, later: Pieces) -> Pieces:
        scales = {name: self.scales.get(name, Scale()) | scale for name, scale in later.scales.items()}
        return Pieces(
            self.base | later.base, self.scales | scales, self.axes | later.axes, (*self.tables, *later.tables)
        )


def _pieces(names: Any, asked_by: Path, merged: set[str], above: tuple[str, ...] = ()) -> Pieces:
    """Return the union of pieces, except those `merged` before; `names` is a name, a list of names or None."""
    known, shared = yaml_files("pieces"), Pieces()
    asked = names if isinstance(names, list) else [names] if names is not None else []
    if len(asked) > MOST_PIECES:
        raise UserError(
            f"{asked_by}: it extends {len(asked)} pieces, more than {MOST_PIECES}; put the rest on the board"
        )
    for name in dict.fromkeys(map(str, asked)):
        if name not in known:
            fault = f"'{name}' is a board, not a piece" if name in yaml_files("boards") else f"unknown piece '{name}'"
            raise UserError(f"{asked_by}: extends: {fault} (leaderboards/pieces){did_you_mean(name, known)}")
        if name in above:
            raise UserError(f"{asked_by}: it extends itself")
        if len(above) == MOST_PIECES:
            raise UserError(f"{asked_by}: pieces nest more than {MOST_PIECES} deep; extend them on the board")
        if name not in merged:  # merged twice, a piece would undo later overrides
            raw = _mapping(known[name], PIECE_FIELDS)
            shared |= _pieces(raw.pop("extends", None), known[name], merged, (*above, name)) | _piece(raw, known[name])
            merged.add(name)
    return shared


def _piece(raw: Mapping[str, Any], path: Path) -> Pieces:
    tables = _parts(Table, raw.get("tables"), f"{path}: tables")
    return Pieces(_section(raw, "base", dict, path), _scales(raw, path), _section(raw, "axes", dict, path), tables)


def _mapping(path: Path, fields: set[str]) -> dict[str, Any]:
    raw = load_yaml(path)
    for key in raw:
        if key not in fields:
            raise UserError(f"{path}: unknown field '{key}'{did_you_mean(key, fields)}")
    return raw


def _section(raw: Mapping[str, Any], name: str, kind: type[Any], path: Path) -> Any:
    value = raw.get(name) or kind()
    if not isinstance(value, kind):
        raise UserError(f"{path}: {name} must be a {'mapping' if kind is dict else 'list'}")
    return value


def _scales(raw: Mapping[str, Any], path: Path) -> dict[str, Scale]:
    """Return the scales of a file."""
    scales = {}
    for name, value in _section(raw, "scales", dict, path).items():
        if name not in SCALES:
            raise UserError(f"{path}: unknown scale '{name}'{did_you_mean(str(name), SCALES)}")
        if not isinstance(value, dict):
            raise UserError(f"{path}: scales.{name} must be a mapping, got {value!r}")
        tuning, changes = tuning_settings(value)
        settings = {key: setting for key, setting in changes.items() if key not in ("tuned", "keep")}
        rules = setting_rules(value.get("tuned", []), f"{path}: scales.{name}")
        keep = value.get("keep", [])
        if not isinstance(keep, list):
            raise UserError(f"{path}: scales.{name}.keep must be a list of settings")
        scales[name] = Scale(settings, tuple(rules), tuple(map(str, keep)), tuning)
    return scales


def _tune(raw: Any, path: Path) -> Tune:
    if not isinstance(raw, dict):
        raise UserError(f"{path}: tune must be a mapping, such as {{trials: 12}}, got {raw!r}")
    try:
        return from_values(Tune, raw, "tune")
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _with_axes(settings: Overrides, axes: Mapping[str, Any], path: Path) -> Overrides:
    """Return settings with the ``$name`` of each axis replaced by the axis."""

    def filled(value: Any) -> Any:
        if not isinstance(value, str) or not value.startswith("$"):
            return value
        if value[1:] not in axes:
            raise UserError(f"{path}: unknown axis '{value}'{did_you_mean(value[1:], axes)}")
        return axes[value[1:]]

    return {key: filled(value) for key, value in settings.items()}


def _parts(cls: type[Any], raw: Any, where: str) -> tuple[Any, ...]:
    if raw is None:
        return ()
    if not isinstance(raw, list) or not all(isinstance(item, dict) for item in raw):
        raise UserError(f"{where} must be a list of mappings")
    return tuple(from_values(cls, item, f"{where}[{i}]") for i, item in enumerate(raw))
