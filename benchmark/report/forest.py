"""Coordinates of differences and intervals in small forest plots, on one axis for all rows of a table."""

from __future__ import annotations

from collections.abc import Iterable

WIDTH, EDGE = 200, 6  # units of the picture: its width, and the margin at both ends


def ends_of(intervals: Iterable[tuple[float, float, float]]) -> tuple[float, float]:
    """Return the ends of an axis that contains zero and all intervals, each given as (mean, low, high)."""
    found = [0.0, *(value for interval in intervals for value in interval)]
    return min(found), max(found)


def place(value: float, ends: tuple[float, float]) -> str:
    """Return the x coordinate of a value in the picture."""
    low, high = ends
    return f"{EDGE + (WIDTH - 2 * EDGE) * (value - low) / ((high - low) or 1):.1f}"
