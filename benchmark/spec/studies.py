"""Studies: methods tuned on tasks, with their trials and reported cells. `records.selection` chooses the trial.

A trial is a cell like any other, with ``protocol.validation`` and a tuning seed. Its settings depend only on task,
method and search space, so boards and machines that tune the same method on the same task propose the same trials.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedspan.benchmark import names
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.search import Space
from fedspan.benchmark.spec.board import Board, Overrides, Point, load_board
from fedspan.benchmark.spec.cell import Cell
from fedspan.benchmark.spec.compose import Composer
from fedspan.benchmark.spec.plan import PlannedCell, digest_of_cells, placed, plan
from fedspan.benchmark.spec.settings import first_change, value_of
from fedspan.benchmark.spec.tuning import Tune, tuning_settings

RULES = 1  # version of the rules for drawing trials; another number draws other trials
DRAWS = 4096  # Sobol points to draw before enumerating the rest of a finite space


@dataclass(frozen=True)
class Trial:
    """Settings to try: `values` replace the defaults; trial 0 has none. There is one cell per tuning seed."""

    number: int
    values: Overrides
    cells: tuple[PlannedCell, ...]


@dataclass(frozen=True)
class Study:
    """A method on a task: its search `space`, its `trials`, and its `points`, one per reported seed."""

    tune: Tune
    space: dict[str, Space]
    points: tuple[Point, ...]
    trials: tuple[Trial, ...]

    @property
    def exhausted(self) -> bool:
        """Whether the space has fewer points than the board has trials."""
        return len(self.trials) < self.tune.trials

    @property
    def cells(self) -> list[PlannedCell]:
        """The cells of all trials."""
        return [cell for trial in self.trials for cell in trial.cells]

    @cached_property
    def default(self) -> list[PlannedCell]:
        """The reported cells with the defaults."""
        return plan(self.points)

    def tuned(self, trial: Trial) -> list[PlannedCell]:
        """Return the reported cells with the settings of a trial."""
        return plan([_with(point, trial.values) for point in self.points])

    @property
    def method(self) -> str:
        """The method with its defaults, in words."""
        return self.default[0].cell.method_label

    @property
    def task(self) -> str:
        """The task, in words."""
        what = self.default[0].cell.settings
        return f"{names.task_name(what)}, {names.name_from('model', what['model'])}"

    def values_of(self, trial: Trial) -> dict[str, Any]:
        """Return a trial's value of each tuned setting; for trial 0, the defaults."""
        return {setting: value_of(trial.cells[0].config, setting) for setting in self.space}


def studies_of(axes: Mapping[str, list[Any]]) -> list[Study]:
    """Return the studies of a command line's boards; none without a tuned board.

    Raises `UserError` for an invalid search space, and for seeds used both for tuning and for reported cells.
    """
    found: list[Study] = []
    rest = {key: values for key, values in axes.items() if key != "board"}
    for board in (part for name in axes.get("board", []) for part in load_board(str(name)).parts()):
        try:
            found += studies(board, rest)
        except UserError as error:
            raise UserError(f"board {board.name}: {error}") from None
    return found


def studies(board: Board, axes: Mapping[str, list[Any]]) -> list[Study]:
    """Return the studies of a board, none if it is not tuned."""
    if board.tune is None:
        return []
    own, rest = tuning_settings(axes)
    asked = {key: values[0] if len(values) == 1 else values for key, values in own.items()}
    found: list[Study] = []
    for scale in rest.get("scale", [None]):
        named = rest if scale is None else {**rest, "scale": [scale]}
        tune = board.tune.changed(board.scale(str(scale or board.full)).tune).changed(asked)
        points = placed([point.with_settings({"board": board.word}) for point in board.expand(named)], alone=False)
        made = _studies(tune, points, whole=not first_change(rest))
        if not first_change(axes):
            _check_frozen(board, str(scale or board.full), made)
        found += made
    return found


def trials_at(scale: str) -> str:
    """Return the name under which a frozen board stores the digest of its trials at a scale."""
    return f"{scale} trials"


def digest_of_trials(found: Sequence[Study]) -> str:
    """Return a digest of the keys of all trials of some studies."""
    return digest_of_cells(cell for study in found for cell in study.cells)


def _check_frozen(board: Board, scale: str, found: Sequence[Study]) -> None:
    """Raise `UserError` if the trials of a frozen board differ from those of its version."""
    frozen = board.frozen.get(trials_at(scale))
    if frozen and digest_of_trials(found) != frozen:
        raise UserError(
            f"it is frozen, but its trials at scale={scale} are no longer those of its version: how it tunes, a search "
            "space or a plugin changed; check out the commit that froze it, or freeze a new version"
        )


def _studies(tune: Tune, points: Sequence[Point], whole: bool) -> list[Study]:
    """Return the studies of a board's points.

    `whole` is False if the command line changes the board, which may then lack methods that `tune.space` names.
    """
    groups: dict[str, list[Point]] = {}
    for point in points:
        alike = {key: value for key, value in point.items() if key != "seed"}
        groups.setdefault(json.dumps(alike, sort_keys=True), []).append(point)
    cells = [_cell(group[0]) for group in groups.values()]
    if any(cell.protocol.trial for cell in cells):
        raise UserError("protocol.validation would make reported cells trials; set tune.validation instead")
    if whole:
        tune.check_names(cells)
    met = {seed for point in points if (seed := _cell(point).seed) in tune.seeds}
    if met:
        raise UserError(f"tune.seeds: {min(met)} is also a reported seed; choose seeds that are not reported")
    found = [_study(tune, group, cell) for group, cell in zip(groups.values(), cells, strict=True)]
    _check_once(found)
    return found


def _check_once(found: Sequence[Study]) -> None:
    """Raise `UserError` if a board varies a setting that it tunes: a tuned method has one row per task."""
    seen: dict[str, Study] = {}
    for study in found:
        point = study.points[0]
        rest = {key: value for key, value in point.items() if key not in ("seed", *study.space)}
        other = seen.setdefault(json.dumps(rest, sort_keys=True), study)
        varied = [name for name in study.space if point.get(name) != other.points[0].get(name)]
        if varied:
            raise UserError(f"tune.space: the board both tunes and varies {varied[0]} for {study.method}; choose one")


def _study(tune: Tune, points: Sequence[Point], cell: Cell) -> Study:
    space = tune.space_of(cell)
    default = _trial_point(tune, points[0], {})
    _check_space(space, default)
    candidates = itertools.chain([{}], proposals(space, _seed(cell, space)))
    trials: dict[str, Trial] = {}
    for values in candidates:
        found = plan([{**_with(default, values), "seed": seed} for seed in tune.seeds])
        trials.setdefault(found[0].cell.key, Trial(len(trials), values, tuple(found)))
        if len(trials) == tune.trials:
            break
    return Study(tune, space, tuple(points), tuple(trials.values()))


def _check_space(space: Mapping[str, Space], point: Point) -> None:
    """Raise `UserError` if a plugin rejects an end of a range or a value of a choice when the cell is built."""
    for setting, part in space.items():
        for value in part.values:
            try:
                _cell(_with(point, {setting: value}))
            except UserError as error:
                raise UserError(f"the search space of {setting}, {part}, leaves its domain: {error}") from None


def proposals(space: Mapping[str, Space], seed: int) -> Iterator[Overrides]:
    """Yield distinct points of a space: a scrambled Sobol sequence, then the points of a finite space that it missed.

    A longer sequence begins with the same points.
    """
    if not space:
        return
    from scipy.stats import qmc  # takes half a second, and untuned boards do not need it

    size = math.prod(part.size for part in space.values())
    engine = qmc.Sobol(len(space), scramble=True, rng=np.random.default_rng(seed))
    drawn = (dict(zip(space, row, strict=True)) for row in engine.random(DRAWS))
    points = ({setting: part.at(row[setting]) for setting, part in space.items()} for row in drawn)
    rest = itertools.product(*(part.every() for part in space.values())) if size < DRAWS else ()
    seen: set[str] = set()
    for values in itertools.chain(points, (dict(zip(space, row, strict=True)) for row in rest)):
        name = json.dumps(values)
        if name not in seen:
            seen.add(name)
            yield values
        if len(seen) == size:
            return


def _seed(cell: Cell, space: Mapping[str, Space]) -> int:
    """Return the seed of a study's draws, from task, method and space, without the defaults of tuned settings."""
    what = {name: value for name, value in cell.what.items() if name not in ("seed", "diagnostics")}
    parts = {"protocol": what["protocol"], "algorithm": what["algorithm"]}
    parts |= {f"addon.{addon['name']}": addon for addon in what["addons"]}
    for setting in space:
        owner, _, name = setting.rpartition(".")
        parts[owner] = {key: value for key, value in parts[owner].items() if key != name}
    task = {name: value for name, value in what.items() if name not in ("protocol", "algorithm", "addons")}
    text = json.dumps(
        {"rules": RULES, "task": task, "parts": parts, "space": {name: str(part) for name, part in space.items()}},
        sort_keys=True,
    )
    return int(hashlib.sha256(text.encode()).hexdigest()[:16], 16)


def _trial_point(tune: Tune, point: Point, values: Overrides) -> Point:
    """Return a point as a trial, without diagnostics, which may use test images."""
    kept = {key: value for key, value in point.items() if not key.startswith("diagnostics")}
    return _with(Point(kept, point.full, point.ablation), {"protocol.validation": tune.validation, **values})


def _with(point: Point, values: Overrides) -> Point:
    return Point({**point, **values}, {**point.full, **values}, point.ablation)


def _cell(point: Overrides) -> Cell:
    return Composer().cell(point)
