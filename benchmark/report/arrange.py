"""Rows and columns of a table or figure: where each run goes, and which runs must be left out."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from fedspan.benchmark.names import counted_as
from fedspan.benchmark.report.axes import Axes, flat
from fedspan.benchmark.spec.board import Figure, Table

REFUSED = "refused"  # state of a record that must not be averaged with the others of its table


@dataclass
class Arranged:
    """Runs of one table or figure, with added columns `row` and `column` (tuples of labels) and `state`."""

    runs: pd.DataFrame
    problems: list[str] = field(default_factory=list)


def arrange(frame: pd.DataFrame, axes: Axes, part: Table | Figure) -> Arranged:
    """Return the runs of one table or figure. Raise `UserError` for an unknown axis or if `where` selects nothing.

    Runs that must not be compared or averaged with the others get the state `refused`, and a problem says so.
    """
    runs = frame.assign(state=frame["status"])
    runs = runs.loc[axes.select("where", part.where, runs.index)]
    for name, names in (("row", part.rows), ("column", part.columns)):
        labels = list(zip(*(axes.labels(axis, runs.index) for axis in names), strict=True)) or [()] * len(runs)
        runs = runs.assign(**{name: pd.Series(labels, index=runs.index, dtype=object)})
    arranged = Arranged(runs)
    _refuse_outliers(arranged)
    _refuse_mixtures(arranged)
    return arranged


def comparable(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that a table of the whole frame counts: those with the most common schema, scale and data."""
    arranged = Arranged(frame.assign(state=frame["status"]))
    _refuse_outliers(arranged)
    return arranged.runs[arranged.runs["state"] != REFUSED]


def _refuse_outliers(arranged: Arranged) -> None:
    """Refuse runs whose schema, scale or data is not the most common one."""
    for name in ("schema", "scale"):
        _refuse_minority(arranged, arranged.runs.index, name, "")
    for dataset, group in arranged.runs.groupby("dataset_name", sort=False):
        for _, same in group.groupby("dataset", sort=False):
            _refuse_minority(arranged, same.index, "dataset_digest", f" of {dataset}")
    split = arranged.runs["what"].map(lambda what: json.dumps([what["partition"], what["clients"]], sort_keys=True))
    for (_, _, seed), same in arranged.runs.groupby(["dataset", split, "seed"], sort=False):
        _refuse_minority(arranged, same.index, "partition_digest", f" of seed {seed}")


def _refuse_minority(arranged: Arranged, index: pd.Index[int], name: str, of: str) -> None:
    """Refuse recorded runs whose `name` is not the value of most records (at a tie, the first in the grid)."""
    runs = arranged.runs.loc[index]
    recorded = runs[(runs["status"] != "missing") & runs[name].notna()]
    if recorded.empty:
        return
    kept = recorded[name].value_counts(sort=False).idxmax()
    others = recorded[recorded[name] != kept]
    what = name.replace("_", " ")
    arranged.runs.loc[others.index, "state"] = REFUSED
    for value, group in others.groupby(name, sort=False):
        reason = f"{what}{of} is {_short(value)}, the others' is {_short(kept)}"
        arranged.runs.loc[group.index, "reason"] = reason
        arranged.problems.append(
            f"{counted_as(len(group), 'record is', 'records are')} left out: {reason} (first: {group['key'].iloc[0]})"
        )


def _short(value: Any) -> str:
    return str(value)[:12]


def _refuse_mixtures(arranged: Arranged) -> None:
    """Refuse cells whose recorded runs differ in more than the seed: their mean would be meaningless."""
    usable = arranged.runs[(arranged.runs["state"] != REFUSED) & (arranged.runs["status"] != "missing")]
    places = usable.groupby(["row", "column"], sort=False)["point"]
    several = usable[places.transform("nunique") > 1]
    mixed: dict[str, list[Any]] = {}
    for _, group in several.groupby(["row", "column"], sort=False):
        settings = [flat(what) for what in group.drop_duplicates("point")["what"]]
        first, names = settings[0], sorted(set().union(*settings) - {"seed"})
        differing = [name for name in names if any(other.get(name) != first.get(name) for other in settings)]
        mixed.setdefault(", ".join(differing), []).extend(group.index)
    for differences, index in mixed.items():
        arranged.runs.loc[index, "state"] = REFUSED
        arranged.runs.loc[index, "reason"] = f"it mixes runs that differ in {differences}"
        arranged.problems.append(
            f"{len(index)} runs are left out: cells mix runs that differ in {differences}; "
            f"name that in rows or columns, or choose one with where"
        )
