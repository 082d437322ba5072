"""Search spaces of settings, in annotations of fields: ``mu: Annotated[float, log(1e-4, 1e-1, source="...")] = 1e-3``.

A space is a range (`log`, `linear`) or a list of values (`choice`); `fixed` states why a field is not tuned. None of
this changes results, so the digest of a plugin's source does not cover it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np

from fedspan.benchmark.errors import UserError, field_of
from fedspan.benchmark.fields import defaults_of, hints_of, values_text

LEAST_FOR_ENDS = 3  # fewest numbers in a list whose ends matter
EDGE = 0.1  # share of a range at each end; a chosen value there suggests that the range is too narrow
DIGITS = 3  # significant digits of a value from a range: readable, and the same on every machine


@dataclass(frozen=True)
class Space:
    """The values over which a setting is tuned.

    `values` are the two ends of a range, or all values of a choice. A `whole` range holds integers only.
    """

    scale: Literal["log", "linear", "choice"]
    values: tuple[Any, ...]
    source: str = ""
    whole: bool = False

    def at(self, u: float) -> Any:
        """Return the value at u in [0, 1): a uniform u draws uniformly from the list or the scaled range."""
        if self.scale == "choice":
            return self.values[int(u * len(self.values))]
        low, high = self.values
        if self.whole:
            high = high + 1  # the upper end is included
        value = low * (high / low) ** u if self.scale == "log" else low + (high - low) * u
        if self.whole:
            return min(math.floor(value), self.values[1])
        return min(max(float(f"{value:.{DIGITS}g}"), float(low)), float(high))

    @property
    def ordered(self) -> tuple[Any, ...]:
        """The values in order: numbers ascending, others as listed."""
        return tuple(sorted(self.values)) if are_numbers(self.values) else self.values

    def place(self, value: Any) -> float:
        """Return a value's position from 0 to 1; values outside the space, as defaults may be, are at the nearest end.

        The numbers of a list are equally spaced. A text that is not in the list is at its start.
        """
        if self.scale == "choice":
            return self._place_in_list(value)
        low, high = self.values
        if self.scale == "log":
            place = math.log(value / low) / math.log(high / low) if value > 0 else 0.0
        else:
            place = (value - low) / (high - low)
        return min(max(place, 0.0), 1.0)

    def _place_in_list(self, value: Any) -> float:
        if are_numbers((*self.values, value)):
            return float(np.interp(value, self.ordered, np.linspace(0.0, 1.0, len(self.values))))
        names = list(map(str, self.values))
        return names.index(str(value)) / max(len(names) - 1, 1) if str(value) in names else 0.0

    def end(self, value: Any) -> str:
        """Return "low" or "high" if better values may lie beyond `value`; else an empty text.

        That holds outside a range and in its outer tenths, and for the first and last of a list of at least
        `LEAST_FOR_ENDS` numbers, except for 0.
        """
        edge = EDGE
        if self.scale == "choice":
            if len(self.values) < LEAST_FOR_ENDS or not are_numbers((*self.values, value)) or value == 0:
                return ""
            edge = 0.0
        return "low" if self.place(value) <= edge else "high" if self.place(value) >= 1 - edge else ""

    @property
    def size(self) -> float:
        """The number of values."""
        if self.scale == "choice":
            return len(self.values)
        return self.values[1] - self.values[0] + 1 if self.whole else math.inf

    def every(self) -> tuple[Any, ...]:
        """Return all values of a finite space."""
        return self.values if self.scale == "choice" else tuple(range(self.values[0], self.values[1] + 1))

    def __str__(self) -> str:
        if self.scale == "choice":
            return "{" + ", ".join(map(str, self.values)) + "}"
        return f"{self.scale} {self.values[0]} to {self.values[1]}"


def are_numbers(values: Iterable[Any]) -> bool:
    """Return whether all values are numbers, and so have an order."""
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


@dataclass(frozen=True)
class Fixed:
    """A setting that is not tuned, and why."""

    why: str

    def __str__(self) -> str:
        return "not tuned"


def log(low: float, high: float, *, source: str = "") -> Space:
    """Return the log-uniform range from `low` to `high`, both positive."""
    return _range("log", low, high, source)


def linear(low: float, high: float, *, source: str = "") -> Space:
    """Return the uniform range from `low` to `high`."""
    return _range("linear", low, high, source)


def _range(scale: Literal["log", "linear"], low: float, high: float, source: str) -> Space:
    """Return a range; raise `ValueError`, as all spaces do, if it is empty or its ends are invalid."""
    for end in (low, high):
        if not are_numbers((end,)) or not math.isfinite(end):
            raise ValueError(f"{scale}({low!r}, {high!r}): the ends must be finite numbers")
    if not low < high:
        raise ValueError(f"{scale}({low}, {high}) is empty: the first end must be below the second")
    if scale == "log" and low <= 0:
        raise ValueError(f"log({low}, {high}): the ends must be positive; use linear or choice for 0")
    return Space(scale, (low, high), source)


def choice(*values: Any, source: str = "") -> Space:
    """Return a list of equally likely values."""
    if not values:
        raise ValueError("choice() is empty: name its values")
    if len({repr(value) for value in values}) < len(values):
        raise ValueError(f"choice({', '.join(map(repr, values))}) names a value twice")
    return Space("choice", values, source)


def fixed(why: str) -> Fixed:
    """Return a `Fixed`: a field not tuned because it belongs to the method's recipe or sets the compute."""
    if not why.strip():
        raise ValueError("fixed() needs a reason")
    return Fixed(why)


def spaces_of(cls: type[Any]) -> dict[str, Space | Fixed]:
    """Return the search spaces of a class's fields by name; raise `UserError` for an invalid one."""
    found: dict[str, Space | Fixed] = {}
    for name, hint in hints_of(cls, include_extras=True).items():
        if get_origin(hint) is not Annotated:
            continue
        kind, *marks = get_args(hint)
        spaces = [mark for mark in marks if isinstance(mark, Space | Fixed)]
        if not spaces and (bare := [mark for mark in marks if isinstance(mark, tuple | list)]):
            rule = "a space is written choice(...), linear(low, high) or log(low, high)"
            raise UserError(f"{field_of(cls, name)} is annotated with {bare[0]!r}; {rule}")
        if len(spaces) > 1:
            raise UserError(f"{field_of(cls, name)} has {len(spaces)} search spaces; keep one")
        for space in spaces:
            try:
                found[name] = typed(space, kind)
            except ValueError as error:
                raise UserError(f"{field_of(cls, name)}: {error}") from None
    return found


@dataclass(frozen=True)
class SettingDescription:
    """A setting of a plugin in words: `about` is the source of its search space, or why it is not tuned."""

    name: str
    default: Any
    values: str
    space: str
    about: str


def describe_settings(cls: type[Any], prefix: str) -> list[SettingDescription]:
    """Return the settings of a class in words, their names after `prefix` and a dot."""
    hints, spaces, found = hints_of(cls), spaces_of(cls), []
    for name, default in defaults_of(cls).items():
        space = spaces.get(name)
        about = "" if space is None else space.source if isinstance(space, Space) else space.why
        tuned = str(space) if isinstance(space, Space) else ""
        found.append(SettingDescription(f"{prefix}.{name}", default, values_text(hints[name]), tuned, about))
    return found


def typed(space: Space | Fixed, kind: Any) -> Space | Fixed:
    """Return the space of a field of type `kind`: the range of an `int` field holds integers only."""
    if isinstance(space, Fixed) or space.scale == "choice" or kind is not int:
        return space
    if any(end != int(end) for end in space.values):
        raise ValueError(f"{space}: the ends of a range of whole numbers must be whole")
    return replace(space, values=tuple(map(int, space.values)), whole=True)


def fields_without_space(cls: type[Any]) -> list[str]:
    """Return the numeric fields of a class with neither a search space nor a `fixed` reason."""
    told, hints = spaces_of(cls), hints_of(cls)
    return [field.name for field in dataclasses.fields(cls) if field.name not in told and _numeric(hints[field.name])]


def _numeric(hint: Any) -> bool:
    return hint in (int, float) or any(_numeric(part) for part in get_args(hint))
