"""Tuning settings of a board (``tune:``), and the search space of a cell, from its method's files and the protocol."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedspan.benchmark.errors import UserError, did_you_mean, require
from fedspan.benchmark.fields import defaults_of, from_values
from fedspan.benchmark.names import counted_as, of_setting, percent
from fedspan.benchmark.protocol import OF_THE_TASK, Protocol
from fedspan.benchmark.registry import prefix_of
from fedspan.benchmark.search import Fixed, Space, are_numbers, choice, fixed, linear, log, spaces_of, typed
from fedspan.benchmark.spec.cell import Cell

PREFIX = "tune."  # of these settings at a scale and on a command line: tune.trials=3


@dataclass(frozen=True)
class Tune:
    """Tuning settings of a board.

    Every method gets `trials` on each task, the first with its defaults, on `seeds` that no reported cell uses. A trial
    is scored on a share `validation` of each client's training images. `space` adds settings, or replaces the spaces
    of methods' files and protocol: a list of values, ``{log: [low, high]}``, ``{linear: [low, high]}`` or ``fixed``.
    """

    trials: int = 12
    seeds: tuple[int, ...] = (100,)
    validation: float = 0.15
    space: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.trials >= 1, "tune.trials", "must be at least 1 (the defaults)", self.trials)
        require(bool(self.seeds), "tune.seeds", "must name a seed", list(self.seeds))
        rule = "must name different seeds, none negative"
        distinct = len(set(self.seeds)) == len(self.seeds) and min(self.seeds) >= 0
        require(distinct, "tune.seeds", rule, list(self.seeds))
        require(0 < self.validation < 1, "tune.validation", "must lie in (0, 1)", self.validation)
        for name, value in self.space.items():
            _declared(name, value)

    @property
    def budget(self) -> str:
        """The tuning budget of a method on a task, in words, with the spaces that all methods share."""
        trials, noun = counted_as(self.trials, "trial"), "seed" if len(self.seeds) == 1 else "seeds"
        seeds = ", ".join(map(str, self.seeds))
        given = f"{trials} on {noun} {seeds}, scored on {percent(self.validation)} of the training images"
        shared = sorted(name for name in self.space if name.startswith("protocol."))
        return "; ".join([given, *(f"{of_setting(name)} {_in_words(name, self.space[name])}" for name in shared)])

    def changed(self, settings: Mapping[str, Any]) -> Tune:
        """Return the tuning as changed by the settings named ``tune.*``; ignore others."""
        own = {key.removeprefix(PREFIX): value for key, value in settings.items() if key.startswith(PREFIX)}
        if not own:
            return self
        values = {name: getattr(self, name) for name in defaults_of(Tune)}
        return from_values(Tune, values | own, "tune")

    def space_of(self, cell: Cell) -> dict[str, Space]:
        """Return the tuned settings of a cell with their spaces.

        They are the fields of its protocol and components that declare a space, as changed by the board's own `space`.
        """
        found: dict[str, Space | Fixed] = {}
        for prefix, cls in _parts(cell):
            hints = typing.get_type_hints(cls)
            found |= {f"{prefix}.{name}": space for name, space in spaces_of(cls).items()}
            for name in defaults_of(cls):  # in class order: proposals must not depend on the board's order
                if (setting := f"{prefix}.{name}") in self.space:
                    found[setting] = _declared(setting, self.space[setting], hints[name])
        return {setting: space for setting, space in found.items() if isinstance(space, Space)}

    def check_names(self, cells: typing.Iterable[Cell]) -> None:
        """Raise `UserError` if the board's `space` names a setting that none of its methods or protocols has."""
        known = {f"{prefix}.{name}" for cell in cells for prefix, cls in _parts(cell) for name in defaults_of(cls)}
        if "protocol.validation" in self.space:
            raise UserError("tune.space: all trials hold out the same share; set it as tune.validation")
        if shared := [name for name in self.space if name in {f"protocol.{one}" for one in OF_THE_TASK}]:
            raise UserError(f"tune.space: '{shared[0]}' is the same for all methods of a task; set it in base or grid")
        for name in self.space:
            if name not in known:
                raise UserError(f"tune.space: no method of the board has '{name}'{did_you_mean(name, known)}")


def _parts(cell: Cell) -> Iterator[tuple[str, type[Any]]]:
    """Yield the parts of a cell that can be tuned: prefix of the settings, and class."""
    yield "protocol", Protocol
    yield from ((prefix_of(component), type(component)) for component in cell.components)


def _in_words(name: str, value: Any) -> str:
    """Return the space that a board declares for a setting of the protocol: ``0.005 to 1 (log)``."""
    space = _declared(name, value, typing.get_type_hints(Protocol).get(name.removeprefix("protocol.")))
    if isinstance(space, Fixed):
        return str(space)
    values = [f"{one:g}" if are_numbers((one,)) else str(one) for one in space.values]
    return ", ".join(values) if space.scale == "choice" else f"{' to '.join(values)} ({space.scale})"


def _declared(name: str, value: Any, kind: Any = None) -> Space | Fixed:
    """Return the space that a board declares; raise `UserError` if it is invalid."""
    try:
        if value == "fixed":
            return fixed("the board keeps it")
        if isinstance(value, list | tuple):
            return choice(*_as_floats(value, kind), source="the board")
        if isinstance(value, Mapping) and len(value) == 1:
            [(scale, ends)] = value.items()
            if scale in ("log", "linear") and isinstance(ends, list | tuple) and len(ends) == 2:
                return typed({"log": log, "linear": linear}[scale](*_as_floats(ends, kind), source="the board"), kind)
    except ValueError as error:
        raise UserError(f"tune.space.{name}: {error}") from None
    rule = "must be a list of values, {log: [low, high]}, {linear: [low, high]} or fixed"
    raise UserError(f"tune.space.{name} {rule}, got {value!r}")


def _as_floats(values: Sequence[Any], kind: Any) -> list[Any]:
    """Return the values of a `float` field as floats: the text of a space seeds its proposals, so 1 is 1.0."""
    return [float(value) if kind is float and are_numbers((value,)) else value for value in values]


def tuning_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tuning settings, and the others."""
    own = {key: value for key, value in settings.items() if key.startswith(PREFIX)}
    return own, {key: value for key, value in settings.items() if key not in own}
