"""The numbers that the papers print, from ``results/paper/<paper>.csv``, beside ours."""

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
    """A printed number: where it stands, what it is of, and the settings of the cell that it belongs to.

    `value` is None where the paper prints no number, as "Diverging"; `std` where it prints none. A difference to
    another cell is a number of its own, in points or relative in percent; one that is `derived` is not printed but
    follows from two values that are.
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
    unit: float = math.nan  # of the last printed digit
    kind: Kind = VALUE
    minus: Mapping[str, Any] = field(default_factory=dict)  # settings of the cell to which it is a difference
    derived: bool = False

    @property
    def place(self) -> str:
        """Where it stands in its paper."""
        return self.table.replace("text_", "Sec. ") if self.table.startswith("text_") else f"Table {self.table}"

    @property
    def source(self) -> str:
        """Its paper and the place in it."""
        return f"{self.paper}, {self.place}"

    @property
    def name(self) -> tuple[str, ...]:
        """What tells it from all others."""
        return self.paper, self.table, self.row, self.column, self.metric, self.kind

    def belongs_to(self, what: Mapping[str, Any]) -> bool:
        """Tell whether a cell, by its flat settings, is the one whose number this is."""
        return _has(what, self.settings)


def _has(what: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    return all(what.get(name) == value for name, value in settings.items())


def folder() -> Path | None:
    """Return where the printed numbers lie: in the working folder or beside the installation."""
    places = (FOLDER, packaged("results", "paper"))
    return next((place for place in places if place.is_dir()), None)


def printed_in(sources: Sequence[str], differences: bool = False) -> tuple[Printed, ...]:
    """Return the values, or the differences, of tables that are named as ``paper/table``.

    Raise `UserError` for a table that is not there.
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
    """Return every number that lies there."""
    place = folder()
    paths = [path for path in sorted(place.glob("*.csv")) if path.stem != "hyperparameters"] if place else []
    tables = (table for path in paths for table in _read(path, path.stat().st_mtime_ns).values())
    return tuple(number for table in tables for number in table)


@cache
def _read(path: Path, changed: int) -> dict[str, list[Printed]]:
    """Return the numbers of a file by table; it is read once per change."""
    tables: dict[str, list[Printed]] = {}
    with path.open(encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        if missing := set(COLUMNS) - set(reader.fieldnames or ()):
            raise UserError(f"{path} lacks the column {', '.join(sorted(missing))}")
        for number, line in enumerate(reader, 2):
            try:
                tables.setdefault(line["table"], []).extend(_numbers(line))
            except (ValueError, yaml.YAMLError) as error:
                raise UserError(f"{path} line {number}: {str(error).splitlines()[0]}") from None
    return tables


def _numbers(line: Mapping[str, str]) -> list[Printed]:
    """Return the value of a line and its difference, ``3.07`` or ``3.07%``; blank is none where there is the other."""
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
    """Return what one in the last of some digits is worth, NaN without digits."""
    return 10.0 ** int(Decimal(digits).as_tuple().exponent) if digits else math.nan


def kind_of(table: Table) -> Kind:
    """Return what the numbers of a board's table are."""
    if not table.minus:
        return VALUE
    return "relative difference" if table.relative else "difference"


def differences(
    sources: Sequence[str], what: Mapping[str, Any], reference: Mapping[str, Any], kind: Kind
) -> tuple[Printed, ...]:
    """Return the differences of a cell `what` to its reference: those printed, then those of their printed values.

    A difference of values is left out where a printed one agrees with it to rounding.
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
    """Yield the differences of a cell's values to those that the same tables print for its reference."""
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
    """Tell whether a printed difference is that of the printed values, each of the three rounded to its last digit."""
    assert said.value is not None
    assert derived.value is not None
    return abs(said.value - derived.value) <= 0.5 * (said.unit + derived.unit) * (1 + 1e-9)


@dataclass(frozen=True)
class Reproduction:
    """A printed number beside a mean of ours; `others` are what further tables print for the same cell.

    The difference is ours minus printed. It lies `within` the combined spread if it is at most the root of the sum
    of both squared standard deviations; of those that are unknown nothing is added, and with none it is None.
    """

    printed: Printed
    difference: float | None
    within: bool | None
    others: tuple[Printed, ...] = ()


def compare(
    printed: Iterable[Printed], metrics: Sequence[str], what: Mapping[str, Any], mean: float | None, std: float | None
) -> Reproduction | None:
    """Return the printed number of a cell of the papers' scale, flat settings `what`, beside our mean; None without.

    `metrics` are the names that the number may have.
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
