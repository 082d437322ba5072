"""What lies along x: the places of labels, in their order, at their numbers where they are numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from fedspan.benchmark import names


def along(labels: list[str], numbers: bool) -> tuple[list[str], tuple[str, ...], tuple[float, ...]]:
    """Return the labels along x, what names them there, and their places where all of them are numbers."""
    ticks = _ticks(labels)
    places = _numbers(ticks) if numbers else ()
    if not places:
        return labels, tuple(ticks), ()
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


def _ticks(labels: Sequence[str]) -> list[str]:
    """Return short names of places: the first setting of each label, or its name, where that tells them apart."""
    for pattern, kept in ((r"^\w+\((\w+=)?(\[[^\]]*\]|[^,)]+).*$", r"\2"), (r"\(.*$", "")):
        short = [re.sub(pattern, kept, label) for label in labels]
        if len(set(short)) == len(labels):
            return short
    return [label.replace("(", "\n(").replace(", ", ",\n") for label in labels]
