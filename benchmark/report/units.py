"""Display of numbers (bytes, seconds, FLOPs, differences, counts), and the cost columns of tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from fedspan.benchmark.records.model import settled

SHARED = " ‡"  # marks seconds of runs that shared their machine


def _scaled(value: float, units: str, unit: str) -> str:
    if not math.isfinite(value):
        return "—"
    power = 0
    while abs(value) >= 1000 and power < len(units.split()):
        value, power = value / 1000, power + 1
    prefix = ["", *units.split()][power]
    digits = 0 if value >= 100 or (power == 0 and value == int(value)) else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {prefix}{unit}"


def seconds_text(value: float, spread: float = math.nan) -> str:
    """Return a readable duration, with its `spread` in the same unit if known."""
    if not math.isfinite(value):
        return "—"
    for limit, divisor, unit in ((90, 1, "s"), (5400, 60, "min"), (math.inf, 3600, "h")):
        if value < limit:
            about = f" ± {spread / divisor:.1f}" if math.isfinite(spread) else ""
            return f"{value / divisor:.1f}{about} {unit}"
    raise AssertionError


def bytes_text(value: float) -> str:
    """Return a readable size in decimal units."""
    return _scaled(value, "k M G T P", "B")


def flops_text(value: float) -> str:
    """Return a readable number of floating-point operations."""
    return _scaled(value, "k M G T P E", "FLOP")


def rounded(value: float, digits: int) -> float:
    """Return a rounded value, halves away from zero, whatever the last bits of a mean."""
    if not math.isfinite(value):
        return value
    return float(Decimal(settled(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def fixed(value: float, digits: int = 2) -> str:
    """Return a number with so many decimals, halves rounded away from zero as in the pages' script, zero unsigned."""
    return f"{rounded(value, digits) + 0.0:.{digits}f}"


def signed(value: float) -> str:
    """Return a difference with its sign: ``+1.25``, ``−0.50``, ``0.00``."""
    return with_sign(value, fixed(abs(value)))


def with_sign(value: float, size: str) -> str:
    """Return a value written as `size`, with its sign unless all digits of `size` are zero."""
    return ("−" if value < 0 else "+") + size if set(size) & set("123456789") else size


@dataclass(frozen=True)
class CostColumn:
    """A cost displayed beside the scores: the sum of `parts`; `spread` names its standard deviation."""

    title: str
    about: str
    parts: tuple[str, ...]
    write: Callable[[float], str]
    spread: str = ""

    @property
    def timed(self) -> bool:
        """Whether it is a time, which depends on the machine."""
        return "seconds" in self.parts

    def of(self, cost: Mapping[str, float]) -> float:
        """Return the number, NaN if unknown."""
        return sum(cost[part] for part in self.parts)

    def text(self, cost: Mapping[str, float]) -> str:
        """Return the number with its spread, marked if some of its runs shared their machine."""
        value, spread = self.of(cost), cost.get(self.spread, math.nan)
        written = seconds_text(value, spread) if math.isfinite(spread) else self.write(value)
        return written + (SHARED if self.spread and math.isfinite(value) and cost.get("beside", 0) > 0 else "")


COST_COLUMNS = (
    CostColumn(
        title="Time",
        about="wall-clock time ± sample standard deviation over seeds",
        parts=("seconds",),
        write=seconds_text,
        spread="seconds_std",
    ),
    CostColumn(
        title="Compute",
        about="compute without evaluations",
        parts=("flops",),
        write=flops_text,
    ),
    CostColumn(
        title="Traffic",
        about="traffic up and down of all clients and rounds, including calibrations",
        parts=("bytes_up", "bytes_down"),
        write=bytes_text,
    ),
    CostColumn(
        title="Memory",
        about="memory of the tensors of a client's first step",
        parts=("memory_bytes",),
        write=bytes_text,
    ),
)


def cost_columns(costs: Iterable[Mapping[str, float]]) -> tuple[CostColumn, ...]:
    """Return the columns with a known value in any of the costs."""
    every = list(costs)
    return tuple(column for column in COST_COLUMNS if any(math.isfinite(column.of(cost)) for cost in every))
