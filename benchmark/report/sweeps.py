"""Labels along x of a sweep: their order, ticks and, for numbers, their positions."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from fedspan.benchmark import names

FIRST = r"^\w+\((?:\w+=)?([^,)]+).*$"  # first setting in a plugin's label


def along(labels: list[str], called: Sequence[str]) -> tuple[list[str], tuple[str, ...], tuple[float, ...]]:
    """Return the labels along x, their ticks, and their positions if all are numbers (else none).

    `called` are the labels' display names. Labels that are numbers are sorted by value.
    """
    ticks = [re.sub(FIRST, r"\1", label) for label in labels]
    places = _numbers(ticks)
    if not places:
        return labels, tuple(short(called)), ()
    order = sorted(range(len(labels)), key=places.__getitem__)
    return [labels[i] for i in order], tuple(ticks[i] for i in order), tuple(places[i] for i in order)


def swept(axis: str, labels: Sequence[str]) -> str:
    """Return the name of what a figure sweeps over: an axis, or the only setting in its plugins' labels."""
    fields = {found[1] if (found := re.fullmatch(r"\w+\((\w+)=[^,]*\)", label)) else "" for label in labels}
    [field] = fields if len(fields) == 1 else [""]
    return names.of_setting(field or axis)


def _numbers(labels: Sequence[str]) -> tuple[float, ...]:
    """Return the labels as numbers; none unless there are at least two and all are finite."""
    try:
        found = tuple(float(label) for label in labels)
    except ValueError:
        return ()
    return found if len(found) > 1 and all(map(math.isfinite, found)) else ()


def short(called: Sequence[str]) -> Sequence[str]:
    """Return names without text in parentheses, if they stay distinct."""
    short = [re.sub(r" \(.*$", "", name) for name in called]
    return short if len(set(short)) == len(called) else called
