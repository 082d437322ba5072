"""Tables of differences: each number minus that of a reference cell, seed by seed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from operator import eq
from typing import Any

import pandas as pd

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.report.axes import PARTS, PROTOCOL, Axes, in_words, kept_axes, named, text
from fedspan.benchmark.spec.board import Table

Place = tuple[str, ...]
TUNED = (*PARTS["method"], PROTOCOL)  # axes along which a cell and its reference may have different settings


def reference_name(table: Table) -> str:
    """Return the name of a table's reference cells as boards write it: ``fedavg``, ``dirichlet(alpha=0.1)``."""
    return ", ".join(named(axis, text(wanted)) for axis, wanted in table.minus.items())


def reference_in_words(table: Table) -> str:
    """Return the name of a table's reference cells for readers: ``FedAvg``, ``no add-ons``."""
    wanted = {axis: one if isinstance(one, (list, tuple)) else [one] for axis, one in table.minus.items()}
    return ", ".join(" or ".join(in_words(axis, text(one)) for one in ones) for axis, ones in wanted.items())


def subtract(runs: pd.DataFrame, axes: Axes, table: Table) -> pd.DataFrame:
    """Return the runs that have a reference, with the difference to its run of the same seed as their value.

    `runs` have a value each. Runs of the reference itself and of cells without a reference are left out. If either run
    is not done, the difference is NaN and has the state of that run. `reference` holds the settings of the reference at
    the papers' scale.

    Raise `UserError` for an axis that the table lacks, if no cell has a reference, or if a cell has several.
    """
    kept, reference = kept_axes(table), set(axes.select("minus", table.minus, runs.index))
    chosen = [cell in reference for cell in runs.index]
    places = list(zip(*(axes.labels(axis, runs.index) for axis in kept), strict=True)) or [()] * len(runs)
    known = _References(runs[chosen], kept, compress(places, chosen), reference_name(table))
    pairs = [None if skip else known.of(place) for place, skip in zip(places, chosen, strict=True)]
    if not any(pairs):
        raise UserError(f"minus: no cell matches the reference {reference_name(table)}")
    mine = runs[[pair is not None for pair in pairs]]
    found = [
        _difference(run, pair, table.relative)
        for run, pair in zip(mine.itertuples(index=False), filter(None, pairs), strict=True)
    ]
    return mine.assign(**pd.DataFrame(found, index=mine.index, dtype=object)).astype({"value": float, "holds": bool})


class _References:
    """Runs of the reference cells, by their labels along the table's other `axes` and by seed."""

    def __init__(self, runs: pd.DataFrame, axes: Sequence[str], places: Iterable[Place], name: str) -> None:
        self._axes = axes
        self._exact: dict[Place, dict[int, Any]] = {}
        each: Iterable[Any] = runs.itertuples(index=False)
        for place, run in zip(places, each, strict=True):
            known = self._exact.setdefault(place, {})
            if any(other.point != run.point for other in known.values()):
                beside = f" beside {', '.join(place)}" if place else ""
                raise UserError(
                    f"minus: {name} is several cells{beside}; "
                    "add the axis that distinguishes them to rows, columns or minus"
                )
            known[run.seed] = run
        self._named: dict[Place, list[Place]] = {}
        for place in self._exact:
            self._named.setdefault(self._names(place), []).append(place)

    def of(self, place: Place) -> dict[int, Any] | None:
        """Return the reference's runs with these labels, by seed; None without a reference.

        Without an exact match, the reference is the one on the same task, with the same plugin names and the most equal
        labels, if it is unique: a setting may be tuned for a method.
        """
        if place in self._exact:
            return self._exact[place]
        alike = {other: sum(map(eq, other, place)) for other in self._named.get(self._names(place), [])}
        nearest = [other for other, count in alike.items() if count == max(alike.values())]
        return self._exact[nearest[0]] if len(nearest) == 1 else None

    def _names(self, place: Place) -> Place:
        """Return the labels, those along axes of `TUNED` without settings."""
        return tuple(
            re.sub(r"\([^()]*\)", "", label) if axis in TUNED else label
            for axis, label in zip(self._axes, place, strict=True)
        )


def _difference(run: Any, references: Mapping[int, Any], relative: bool) -> dict[str, Any]:
    """Return a run's new columns; `value` is the difference (in percent if `relative`) to the reference of its seed."""
    other = references.get(run.seed)
    found = {
        "value": run.value,
        "holds": run.holds,
        "state": run.state,
        "reason": run.reason,
        "reference": next(iter(references.values())).paper,
    }
    if run.state != "done":
        return found
    if other is None or other.state != "done":
        state, reason = (other.state, other.reason) if other else ("missing", "")
        said = f"the reference: {reason}" if reason else "the reference"
        return found | {"state": state, "reason": said, "value": math.nan}
    value = run.value - other.value
    if relative:
        value = 100 * value / other.value if other.value else math.nan
    return found | {"value": value, "holds": run.holds and other.holds}
