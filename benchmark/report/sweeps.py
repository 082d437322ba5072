"""What lies along x: the places of labels, in their order, at their numbers where they are numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from fedspan.benchmark import names

FIRST = r"^\w+\((?:\w+=)?([^,)]+).*$"  # setting of a plugin in its label


def along(labels: list[str], called: Sequence[str]) -> tuple[list[str], tuple[str, ...], tuple[float, ...]]:
    """Return the labels along x, what names them there, and their places where all of them are numbers.

    `called` is what people call them. Where all are numbers, they stand in the order of these.
    """
    ticks = [re.sub(FIRST, r"\1", label) for label in labels]
    places = _numbers(ticks)
    if not places:
        return labels, tuple(short(called)), ()
    order = sorted(range(len(labels)), key=places.__getitem__)
    return [labels[i] for i in order], tuple(ticks[i] for i in order), tuple(places[i] for i in order)


def swept(axis: str, labels: Sequence[str]) -> str:
    """Return what a figure sweeps over in words: an axis, or the one setting by which its plugins differ."""
    fields = {found[1] if (found := re.fullmatch(r"\w+\((\w+)=[^,]*\)", label)) else "" for label in labels}
    [field] = fields if len(fields) == 1 else [""]
    return names.of_setting(field or axis)


def _numbers(labels: Sequence[str]) -> tuple[float, ...]:
    """Return the places of x as numbers, empty unless all are."""
    try:
        found = tuple(float(label) for label in labels)
    except ValueError:
        return ()
    return found if len(found) > 1 and all(map(math.isfinite, found)) else ()


def short(called: Sequence[str]) -> Sequence[str]:
    """Return names without what stands in parentheses, where that tells them apart."""
    short = [re.sub(r" \(.*$", "", name) for name in called]
    return short if len(set(short)) == len(called) else called
