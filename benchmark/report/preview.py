"""Link preview of the leaderboard: a picture of the headline and each method's gain."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes as Plot
from matplotlib.figure import Figure as Canvas

from fedspan.benchmark.names import of_method_label
from fedspan.benchmark.report.figures import save
from fedspan.benchmark.report.overview import Line, View
from fedspan.benchmark.report.style import COLOURS, INK, QUIET, STYLE

FILE = "preview.png"
WIDTH, HEIGHT, DPI = 1200, 630, 100  # pixels, the usual size of link previews
MOST = 9  # methods
LETTERS = 56  # per line of the headline
LETTER = 0.0083  # width of a letter in a name, as a share of the picture's width


def preview(view: View) -> bytes:
    """Return the preview of a ranking as PNG."""
    said = textwrap.wrap(view.headline, LETTERS)
    about = textwrap.shorten(view.about, 2 * LETTERS, placeholder=" ...")
    lines = view.lines[:MOST]
    with matplotlib.rc_context({**STYLE, "font.size": 13}):
        canvas = Canvas(figsize=(WIDTH / DPI, HEIGHT / DPI))
        canvas.text(0.03, 0.93, "FedSpan leaderboard", fontsize=13, color=QUIET, va="top")
        canvas.text(0.03, 0.87, "\n".join(said), fontsize=22, weight="bold", va="top", linespacing=1.25)
        top = 0.87 - 0.075 * len(said)
        canvas.text(0.03, top, about, fontsize=12, color=QUIET, va="top")
        left = 0.03 + LETTER * max(len(line.name) + len(line.place_text) + 3 for line in lines)
        plot = canvas.add_axes((left, 0.13, 0.97 - left, top - 0.22))
        draw_gains(plot, lines)
        plot.set_xlabel(f"Gain over {of_method_label(view.reference)} in points, 95% CI")
        return save(canvas, "png", dpi=DPI)


def draw_gains(plot: Plot, lines: Sequence[Line]) -> None:
    """Draw the gains of a ranking's rows with intervals, first row on top; filled where the interval excludes zero."""
    for y, line in enumerate(reversed(lines)):
        if line.gain:
            mean, low, high = line.gain
            colour, inside = (COLOURS[0], COLOURS[0]) if low > 0 or high < 0 else (QUIET, "white")
            plot.plot([low, high], [y, y], color=INK, linewidth=1.2)
            plot.plot([mean], [y], "o", color=colour, markerfacecolor=inside)
    plot.axvline(0, color=QUIET, linewidth=0.9)
    plot.grid(False)
    plot.set_yticks(range(len(lines)), [f"{line.place_text}   {line.name}" for line in reversed(lines)])
    plot.set_ylim(-0.6, len(lines) - 0.4)
