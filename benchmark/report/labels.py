"""Line names beside a plot in place of a legend, if there are few, and the swatches of a page's legend."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes as Plot
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path
from matplotlib.transforms import Affine2D

from fedspan.benchmark.report.drawing import Drawing, Panel
from fedspan.benchmark.report.style import COLOURS, DASHES, LINES, MARKERS, fill_of

MOST = 5  # lines that are named directly
LETTERS = 19  # per line of a name
NARROWEST = 4  # letters per line of a tick label
FONT = 7.0  # points
LEADING = 1.25
LETTER = 0.56 * FONT / 72  # mean width in inches
LABEL = 8.0  # points, of axis labels
SWATCH_HATCHES = {  # strokes over a bar's swatch, by matplotlib's hatch
    "": "",
    "///": "M9 5 13 1M9 9 17 1M13 9 17 5",
    "\\\\\\": "M9 5 13 9M9 1 17 9M13 1 17 5",
    "xxx": "M9 1 17 9M9 9 17 1",
    "---": "M9 3H17M9 7H17",
    "...": "M10.5 2.5h0M15.5 2.5h0M13 5h0M10.5 7.5h0M15.5 7.5h0",
    "ooo": "M10.5 5a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0 -5 0",
}
HARD = "\N{NO-BREAK SPACE}"


def direct(drawing: Drawing, last: Panel) -> bool:
    """Return whether lines are named at their ends in the panel `last`, so that the figure needs no legend."""
    named = {line.number for line in last.lines}
    return drawing.kind.style == "lines" and 1 <= len(drawing.labels) <= MOST and len(named) == len(drawing.labels)


def width(labels: Sequence[str]) -> float:
    """Return the width of names beside a panel, in inches."""
    return 0.16 + LETTER * max(len(line) for label in labels for line in wrapped(label))


def wrapped(label: str, letters: int = LETTERS) -> list[str]:
    """Return a name as lines of about `letters` letters; text in parentheses stays together if it fits."""

    def together(found: re.Match[str]) -> str:
        return found[0].replace(" ", HARD) if len(found[0]) <= letters else found[0]

    lines = textwrap.wrap(re.sub(r"\([^()]*\)", together, label), letters, break_long_words=False)
    return [line.replace(HARD, " ") for line in lines] or [""]


def x_tick_lines(ticks: Sequence[str], inches: float) -> list[str]:
    """Return the tick labels of x, wrapped to equal shares of an axis of `inches`.

    Lines have room for at least `NARROWEST` letters.
    """
    letters = int(0.95 * inches / max(len(ticks), 1) / LETTER)
    return ["\n".join(wrapped(tick, max(letters, NARROWEST))) for tick in ticks]


def y_label_lines(label: str, inches: float) -> list[str]:
    """Return the lines of a y axis label beside a plot that is `inches` tall."""
    return wrapped(label, max(int(inches / (0.58 * LABEL / 72)), 12)) if label else []


def name_lines(plot: Plot, panel: Panel, height: float, colour: str) -> None:
    """Write each line's name at its end; `height` is the panel's height in inches."""
    low, high = plot.get_ylim()
    ends = [((float(line.mean[-1]) - low) / ((high - low) or 1), line) for line in panel.lines]
    ends.sort(key=lambda end: end[0])
    sizes = [len(wrapped(line.label)) * FONT * LEADING / 72 / height for _, line in ends]
    for (at, line), y in zip(ends, spread_out([at for at, _ in ends], sizes), strict=True):
        look = plot.lines[[one.get_gid() for one in plot.lines].index(f"line-{line.number}")]
        plot.annotate(
            "\n".join(wrapped(line.label)), (1, at), (1.06, y), "axes fraction", "axes fraction",
            va="center", ha="left", fontsize=FONT, linespacing=LEADING - 0.1, color=colour, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": look.get_color(), "linewidth": 1.2, "shrinkA": 0, "shrinkB": 2,
                        "relpos": (0, 0.5)},
        )  # fmt: skip


def spread_out(wanted: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """Return ascending positions near the wanted ones (ascending), with room for names of these sizes.

    Names lie between 0 and 1 if all of them fit there.
    """
    groups: list[tuple[float, list[float]]] = []  # centre of a stack of names, their sizes
    for place, size in zip(wanted, sizes, strict=True):
        centre, stack = _inside(place, size), [size]
        while groups and groups[-1][0] + sum(groups[-1][1]) / 2 > centre - sum(stack) / 2:
            below, others = groups.pop()
            centre = (below * len(others) + centre * len(stack)) / (len(others) + len(stack))
            stack = others + stack
            centre = _inside(centre, sum(stack))
        groups.append((centre, stack))
    found = []
    for centre, stack in groups:
        at = centre - sum(stack) / 2
        for size in stack:
            found.append(at + size / 2)
            at += size
    return found


def _inside(centre: float, size: float) -> float:
    """Return the nearest centre at which a stack of that size lies between 0 and 1; 0.5 if it is too big."""
    return min(max(centre, size / 2), 1 - size / 2) if size < 1 else 0.5


def swatch(drawing: Drawing, number: int) -> str:
    """Return the swatch of a label in a page's legend, as the content of an SVG of 26 by 10 units."""
    marks = {points.number: points.mark for panel in drawing.panels for points in panel.points}
    if drawing.kind.style == "bars":
        _, hatch = fill_of(number)
        over = f'<path d="{SWATCH_HATCHES[hatch]}" fill="none" stroke="white" stroke-linecap="round"></path>'
        return f'<rect x="8" y="0" width="10" height="10" fill="var(--line-{number % LINES})"></rect>{over}'
    mark = marks.get(number, number)
    style = MarkerStyle(MARKERS[mark % len(MARKERS)])
    shape = style.get_path().transformed(style.get_transform() + Affine2D().scale(6, -6).translate(13, 5))
    d = _svg_path(shape)
    if number in marks:
        return f'<path d="{d}" fill="var(--line-{number % len(COLOURS)})"></path>'
    dash = DASHES[number % len(DASHES)]
    dashes = "" if dash == "-" else f' stroke-dasharray="{" ".join(f"{2 * length:g}" for length in dash[1])}"'
    colour = f"var(--line-{number % LINES})"
    line = f'<line x1="1" y1="5" x2="25" y2="5" stroke="{colour}" stroke-width="2"{dashes}></line>'
    return f'{line}<path d="{d}" fill="{colour}"></path>'


def _svg_path(path: Path) -> str:
    """Return a matplotlib path as SVG path data."""
    letters = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C", Path.CLOSEPOLY: "Z"}
    found = []
    for points, code in path.iter_segments(curves=True, simplify=False):
        numbers = "" if code == Path.CLOSEPOLY else " ".join(f"{value:.2f}" for value in points)
        found.append(f"{letters[code]}{numbers}")
    return " ".join(found)
