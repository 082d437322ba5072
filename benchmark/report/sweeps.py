"""Scores over an axis: the labels along x with their order, ticks and positions, and the lines or bars over them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from fedspan.benchmark import names
from fedspan.benchmark.report.drawing import Panel, PlotLine

FIRST = r"(\w+\((?:\w+=)?)([^,)]+)(.*)"  # a plugin's label: the text before its first setting, the setting, the rest


def order_along_x(labels: list[str], called: Sequence[str]) -> tuple[list[str], tuple[str, ...], tuple[float, ...]]:
    """Return the labels along x, their ticks, and their positions if they differ only in a number (else none).

    `called` are the labels' display names. Labels that differ only in a number are sorted by it.
    """
    ticks, around = zip(*map(_split, labels), strict=True)
    places = _numbers(ticks) if len(set(around)) == 1 else ()
    if not places:
        return labels, tuple(short(called)), ()
    order = sorted(range(len(labels)), key=places.__getitem__)
    return [labels[i] for i in order], tuple(ticks[i] for i in order), tuple(places[i] for i in order)


def _split(label: str) -> tuple[str, str]:
    """Return the first setting in a plugin's label, or else the whole label, and the text around it."""
    found = re.fullmatch(FIRST, label)
    return (found[2], found[1] + found[3]) if found else (label, "")


def swept_name(axis: str, labels: Sequence[str]) -> str:
    """Return the name of what a figure sweeps over: an axis, or the only setting in its plugins' labels."""
    fields = {found[1] if (found := re.fullmatch(r"\w+\((\w+)=[^,]*\)", label)) else "" for label in labels}
    [field] = fields if len(fields) == 1 else [""]
    return names.of_setting(field or axis)


def _numbers(labels: Sequence[str]) -> tuple[float, ...]:
    """Return the labels as numbers; none unless there are at least two, all of them finite and different."""
    try:
        found = tuple(float(label) for label in labels)
    except ValueError:
        return ()
    return found if 1 < len(set(found)) == len(found) and all(map(math.isfinite, found)) else ()


def short(called: Sequence[str]) -> Sequence[str]:
    """Return names without text in parentheses, if they stay distinct."""
    short = [re.sub(r" \(.*$", "", name) for name in called]
    return short if len(set(short)) == len(called) else called


def line_through(number: int, label: str, at: Mapping[float, pd.Series[float]]) -> PlotLine:
    """Return the line of means and deviations over seeds at each position of x."""
    ordered = [at[position].to_numpy() for position in sorted(at)]
    return PlotLine(
        number=number,
        label=label,
        x=np.array(sorted(at), dtype=np.float64),
        mean=np.array([values.mean() for values in ordered]),
        std=np.array([values.std(ddof=1) if len(values) > 1 else 0.0 for values in ordered]),
        n=min(map(len, ordered)),
    )


def ratios(panel: Panel, first: str, columns: int) -> tuple[Panel, tuple[str, ...]]:
    """Return a panel of bars divided by those of the row with number 0, and the problems.

    `first` is the label of that row, `columns` is the number of columns; those in which it has no value are left out.
    """
    base = {x: mean for line in panel.lines if line.number == 0 for x, mean in zip(line.x, line.mean, strict=True)}

    def share(line: PlotLine) -> PlotLine:
        known = np.array([base.get(x, 0.0) != 0 for x in line.x], dtype=bool)
        by = np.array([base[x] for x in line.x[known]])
        return replace(line, x=line.x[known], mean=line.mean[known] / by, std=line.std[known] / by)

    lines = tuple(made for line in panel.lines if len((made := share(line)).x))
    lost = len({x for line in panel.lines for x in line.x} - {x for line in lines for x in line.x})
    if not lost:
        return replace(panel, lines=lines), ()
    why = "it has no finished run there, or their mean is zero"
    problem = f"no ratio to {first}, the first row, in {lost} of {columns} columns: {why}"
    return replace(panel, lines=lines, note="" if lines else f"no ratio to {first}"), (problem,)
