"""Panel layout of a figure's files, in inches: as wide as one or two columns of a paper."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedspan.benchmark.report import labels
from fedspan.benchmark.report.drawing import Drawing
from fedspan.benchmark.report.style import MOST_ACROSS, ONE_COLUMN, TWO_COLUMNS

TITLE, RIGHT, SCALE = 0.28, 0.06, 0.33  # above a panel, beside it, and for the colour bar of a map
NUMBERS, LINE = 0.48, 0.13  # the numbers of the y axis, and one line of text
TICKS, X_LABEL, EDGE = 0.17, 0.2, 0.07  # below a panel
LOW, HIGH = 1.9, 2.3  # height of a panel including everything around it


@dataclass(frozen=True)
class Layout:
    """Sizes of a figure with `down` rows of `across` panels, in inches."""

    across: int
    down: int
    width: float
    panel: tuple[float, float]  # width and height including everything around it
    left: float  # of the plot within its panel
    bottom: float
    names: float  # width beside the last panel of a row
    legend: float  # height below the panels
    columns: int  # of the legend
    scale: bool  # whether each plot has a colour bar beside it

    @property
    def height(self) -> float:
        """Height of the whole figure."""
        return self.down * self.panel[1] + self.legend

    @property
    def plot(self) -> tuple[float, float]:
        """Width and height of the plot within a panel."""
        return self.panel[0] - self.left - RIGHT, self.panel[1] - TITLE - self.bottom

    def box(self, number: int) -> tuple[float, float, float, float]:
        """Return (left, bottom, width, height) of a panel's plot, as shares of the figure."""
        row, column = divmod(number, self.across)
        left, bottom = column * self.panel[0] + self.left, self.height - (row + 1) * self.panel[1] + self.bottom
        wide, tall = self.plot
        wide -= SCALE if self.scale else 0.0
        return left / self.width, bottom / self.height, wide / self.width, tall / self.height

    @classmethod
    def of(cls, drawing: Drawing) -> Layout:
        """Return the layout of a figure."""
        count = len(drawing.panels)
        across = 2 if count == 4 else min(MOST_ACROSS, count)
        width = ONE_COLUMN if count == 1 else TWO_COLUMNS
        names = labels.width(drawing.labels) if labels.direct(drawing, drawing.panels[across - 1]) else 0.0
        side = (width - names) / across
        bare = drawing.kind.style in ("points", "sphere")
        tall = min(HIGH, max(LOW, 0.8 * side))
        left = EDGE if bare else NUMBERS + LINE * len(labels.y_label_lines(drawing.kind.y, tall - 0.7))
        lines = 1 + max((tick.count("\n") for tick in _ticks(drawing, side - left - RIGHT)), default=0)
        bottom = EDGE + (0.0 if bare else TICKS + LINE * (lines - 1)) + (X_LABEL if drawing.kind.x else 0.0)
        columns, legend = 1, 0.0
        if drawing.labels and not names:
            longest = max(map(len, drawing.labels))
            columns = max(1, min(len(drawing.labels), int(width / (0.5 + 0.065 * longest))))
            legend = 0.17 * math.ceil(len(drawing.labels) / columns) + 0.15
        return cls(
            across=across,
            down=math.ceil(count / across),
            width=width,
            panel=(side, tall + LINE * (lines - 1)),
            left=left,
            bottom=bottom,
            names=names,
            legend=legend,
            columns=columns,
            scale=drawing.kind.style == "map",
        )


def _ticks(drawing: Drawing, inches: float) -> list[str]:
    return [] if drawing.places else labels.x_tick_lines(drawing.ticks, inches)
