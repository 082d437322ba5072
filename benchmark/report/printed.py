"""Numbers printed in the papers, from ``results/paper/<paper>.csv``, and their comparison with ours."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from fedspan.benchmark.errors import UserError, did_you_mean
from fedspan.benchmark.places import packaged
from fedspan.benchmark.spec.board import Table

FOLDER = Path("results/paper")
COLUMNS = ("paper", "table", "row", "column", "metric", "value", "std", "delta", "minus", "seeds", "settings", "note")
Kind = Literal["value", "difference", "relative difference"]
VALUE: Kind = "value"


@dataclass(frozen=True)
class Printed:
    """A printed number: its place in the paper, its metric, and the settings of its cell.

    `value` is None where the paper prints no number, as with "Diverging", and `std` where it prints none. A difference
    to another cell is a separate number, in points, or in percent if relative; a `derived` one is not printed itself
    but computed from two printed values.
    """

    paper: str
    table: str
    row: str
    column: str
    metric: str
    value: float | None
    std: float | None
    settings: Mapping[str, Any]
    note: str
    unit: float = math.nan  # value of one in the last printed digit
    kind: Kind = VALUE
    minus: Mapping[str, Any] = field(default_factory=dict)  # settings of the reference cell of a difference
    derived: bool = False

    @property
    def place(self) -> str:
        """The table or section of the paper that prints it."""
        return self.table.replace("text_", "Sec. ") if self.table.startswith("text_") else f"Table {self.table}"

    @property
    def source(self) -> str:
        """The paper, and the place in it."""
        return f"{self.paper}, {self.place}"

    @property
    def name(self) -> tuple[str, ...]:
        """The identity of the number, unique among all."""
        return self.paper, self.table, self.row, self.column, self.metric, self.kind

    def is_rounded_from(self, value: float) -> bool:
        """Return whether `value`, rounded to as many digits, is the printed number."""
        assert self.value is not None
        return math.isclose(value, self.value, rel_tol=0, abs_tol=0.5 * self.unit * (1 + 1e-9))

    def belongs_to(self, what: Mapping[str, Any]) -> bool:
        """Return whether this is the number of the cell with these flat settings."""
        return _has(what, self.settings)


def _has(what: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    return all(what.get(name) == value for name, value in settings.items())


def folder() -> Path | None:
    """Return the folder of the printed numbers, in the working folder or beside the installation; None without one."""
    places = (FOLDER, packaged("results", "paper"))
    return next((place for place in places if place.is_dir()), None)


def printed_in(sources: Sequence[str], differences: bool = False) -> tuple[Printed, ...]:
    """Return the values, or the differences, of tables named as ``paper/table``.

    Raise `UserError` for an unknown table.
    """
    return tuple(number for source in sources for number in _table(source) if (number.kind != VALUE) is differences)


def _table(source: str) -> list[Printed]:
    paper, _, table = source.partition("/")
    place = folder()
    papers = sorted(path.stem for path in place.glob("*.csv")) if place else []
    if place is None or paper not in papers:
        raise UserError(f"printed: there are no numbers of '{paper}' in {FOLDER}{did_you_mean(paper, papers)}")
    path = place / f"{paper}.csv"
    found = _read(path, path.stat().st_mtime_ns)
    if table not in found:
        raise UserError(f"printed: {path} has no table '{table}'{did_you_mean(table, found)}")
    return found[table]


def all_printed() -> tuple[Printed, ...]:
    """Return every number in the folder."""
    place = folder()
    paths = [path for path in sorted(place.glob("*.csv")) if path.stem != "hyperparameters"] if place else []
    tables = (table for path in paths for table in _read(path, path.stat().st_mtime_ns).values())
    return tuple(number for table in tables for number in table)


@cache
def _read(path: Path, changed: int) -> dict[str, list[Printed]]:
    """Return the numbers of a file by table, cached until its modification time `changed` differs."""
    tables: dict[str, list[Printed]] = {}
    for number, line in lines_of(path, COLUMNS):
        try:
            tables.setdefault(line["table"], []).extend(_numbers(line))
        except (ValueError, yaml.YAMLError) as error:
            raise UserError(f"{path} line {number}: {str(error).splitlines()[0]}") from None
    return tables


def lines_of(path: Path, columns: Iterable[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number and the values of each line of a CSV file; raise `UserError` if it lacks one of `columns`."""
    with path.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        if missing := set(columns) - set(reader.fieldnames or ()):
            raise UserError(f"{path} lacks the column {', '.join(sorted(missing))}")
        yield from enumerate(reader, 2)


def _numbers(line: Mapping[str, str]) -> list[Printed]:
    """Return a line's value, unless blank beside a difference, and its difference, ``3.07`` or ``3.07%``."""
    settings, minus = _settings(line["settings"]), _settings(line["minus"])
    place: dict[str, Any] = {name: line[name] for name in ("paper", "table", "row", "column", "metric", "note")}
    std = float(line["std"]) if line["std"] else None
    delta = line["delta"].removesuffix("%")
    if bool(delta) != bool(minus):
        raise ValueError("a delta needs the settings of the cell that it is a difference to, in the column minus")
    found = []
    if line["value"] or not delta:
        value = float(line["value"]) if line["value"] else None
        found.append(Printed(**place, value=value, std=std, settings=settings, unit=_unit(line["value"])))
    if delta:
        kind: Kind = "difference" if delta == line["delta"] else "relative difference"
        told: dict[str, Any] = {"settings": settings, "unit": _unit(delta), "kind": kind, "minus": minus}
        found.append(Printed(**place, value=float(delta), std=None, **told))
    return found


def _settings(words: str) -> dict[str, Any]:
    pairs = [word.partition("=") for word in words.split()]
    return {name: yaml.safe_load(text) for name, _, text in pairs}


def _unit(digits: str) -> float:
    """Return the value of one in the last digit, NaN without digits."""
    return 10.0 ** int(Decimal(digits).as_tuple().exponent) if digits else math.nan


def kind_of(table: Table) -> Kind:
    """Return the kind of the numbers in a board's table."""
    if not table.minus:
        return VALUE
    return "relative difference" if table.relative else "difference"


def differences(
    sources: Sequence[str], what: Mapping[str, Any], reference: Mapping[str, Any], kind: Kind
) -> tuple[Printed, ...]:
    """Return the differences of a cell `what` to its reference: printed ones, then ones derived from printed values.

    A derived difference is left out if a printed one agrees with it to rounding.
    """
    told = [number for number in printed_in(sources, differences=True) if number.kind == kind]
    found = [number for number in told if number.belongs_to(what) and _has(reference, number.minus)]
    for derived in _derived(printed_in(sources), what, reference, kind):
        if not any(said.metric == derived.metric and _agree(said, derived) for said in found):
            found.append(derived)
    return tuple(found)


def _derived(
    values: Sequence[Printed], what: Mapping[str, Any], reference: Mapping[str, Any], kind: Kind
) -> Iterator[Printed]:
    """Yield the differences between a cell's values and those of its reference in the same tables."""
    others = {(number.paper, number.table, number.metric): number for number in values if number.belongs_to(reference)}
    for number in values:
        other = others.get((number.paper, number.table, number.metric))
        if other is None or number.value is None or other.value is None or not number.belongs_to(what):
            continue
        value, unit = number.value - other.value, number.unit + other.unit
        if kind == "difference":
            spreads = [spread for spread in (number.std, other.std) if spread is not None]
            std = math.hypot(*spreads) if spreads else None
        elif other.value == 0:
            continue
        else:
            value, unit, std = 100 * value / other.value, 100 * unit / abs(other.value), None
        yield replace(number, value=value, std=std, unit=unit, kind=kind, derived=True)


def _agree(said: Printed, derived: Printed) -> bool:
    """Return whether a printed difference equals that of the printed values, given the rounding of all three."""
    assert said.value is not None
    assert derived.value is not None
    return abs(said.value - derived.value) <= 0.5 * (said.unit + derived.unit) * (1 + 1e-9)


@dataclass(frozen=True)
class Reproduction:
    """A printed number beside our mean; `others` are different numbers that further tables print for the same cell.

    The difference is ours minus printed. It is `within` the combined spread if it is at most the root of the sum of
    both squared standard deviations; an unknown deviation adds nothing, and without any `within` is None.
    """

    printed: Printed
    difference: float | None
    within: bool | None
    others: tuple[Printed, ...] = ()


def compare(
    printed: Iterable[Printed], metrics: Sequence[str], what: Mapping[str, Any], mean: float | None, std: float | None
) -> Reproduction | None:
    """Return a cell's printed number beside our mean, or None if none is printed.

    `what` are the cell's flat settings at the papers' scale, `metrics` the names that the number may have.
    """
    mine = [number for number in printed if number.metric in metrics and number.belongs_to(what)]
    if not mine:
        return None
    first, *rest = mine
    others = tuple(number for number in rest if number.value != first.value)
    if mean is None or first.value is None:
        return Reproduction(printed=first, difference=None, within=None, others=others)
    difference = mean - first.value
    spreads = [spread for spread in (std, first.std) if spread is not None]
    within = abs(difference) <= math.hypot(*spreads) if spreads else None
    return Reproduction(printed=first, difference=difference, within=within, others=others)
