"""Accuracy per round and singular values: one panel per column, one line per row, mean and band over seeds."""

from __future__ import annotations

import io
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes as Plot
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from benchmark.board import Figure
from benchmark.errors import UserError
from benchmark.report.axes import Axes, named
from benchmark.report.table import arrange

# Okabe and Ito (2008), without black and yellow: told apart with the common colour vision deficiencies.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6E7781")
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
INK, GRID = "#24292F", "#DDE1E6"
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "savefig.transparent": True,
    "svg.hashsalt": "fedspan",
    "pdf.fonttype": 42,
}
PANEL = (3.3, 2.5)  # inches
MOST_ACROSS = 3
MOST_LINES = len(COLOURS) * len(DASHES)  # that can be told apart
MOST_PANELS = 24
FLOOR = 1e-12  # singular values below this share of the largest are rounding noise


@dataclass(frozen=True)
class Kind:
    """What a figure draws: its axes' names, and the setting that makes records hold it."""

    x: str
    y: str
    column: str
    lacking: str
    remark: str = ""


KINDS = {
    "accuracy": Kind(
        "Round", "Test accuracy (%)", "curve", "no accuracy per round (their clients keep their own weights)"
    ),
    "spectrum": Kind(
        "Index k",
        "Natural log of singular value k",
        "spectrum",
        "no spectra; set diagnostics.spectra=true",
        " Values below 1e-12 of the largest are rounding noise and are drawn at that floor.",
    ),
}


@dataclass(frozen=True)
class Line:
    """Mean and sample standard deviation of `n` seeds at each x; `number` is the row, the same in every panel."""

    number: int
    label: str
    x: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    n: int


@dataclass(frozen=True)
class Panel:
    """One column."""

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Drawing:
    """A figure ready to be drawn; `labels` are its rows."""

    number: int
    title: str
    kind: Kind
    labels: tuple[str, ...]
    panels: tuple[Panel, ...]
    problems: tuple[str, ...]

    @property
    def caption(self) -> str:
        """One line that says what is drawn."""
        over = f"{self.kind.x[0].lower()}{self.kind.x[1:]}"
        return (
            f"{self.kind.y} over {over}: mean of the seeds, shaded ± one sample standard deviation.{self.kind.remark}"
        )


def draw(frame: pd.DataFrame, axes: Axes, figure: Figure, number: int) -> Drawing:
    """Return what a figure of the board shows; raise `UserError` if it cannot be made."""
    arranged = arrange(frame, axes, figure)
    if figure.kind not in KINDS:
        raise UserError(f"a figure of kind '{figure.kind}' cannot be drawn yet")
    kind = KINDS[figure.kind]
    done = arranged.runs[arranged.runs["state"] == "done"]
    lacking = done[done[kind.column].isna()]
    problems = list(arranged.problems)
    if not lacking.empty:
        problems.append(
            f"{len(lacking)} of {len(done)} finished records hold {kind.lacking} (first: {lacking['key'].iloc[0]})"
        )

    def text(names: Sequence[str], labels: Sequence[str], otherwise: str) -> str:
        return ", ".join(named(axis, label) for axis, label in zip(names, labels, strict=True)) or otherwise

    rows = {row: i for i, row in enumerate(dict.fromkeys(arranged.runs["row"]))}
    columns = list(dict.fromkeys(arranged.runs["column"]))
    for found, most, what in ((len(rows), MOST_LINES, "lines"), (len(columns), MOST_PANELS, "panels")):
        if found > most:
            raise UserError(f"{found} {what} cannot be told apart, {most} can; choose some with where")
    labels = tuple(text(figure.rows, row, "all") for row in rows)
    drawable = done[done[kind.column].notna()]
    groups = {place: list(group) for place, group in drawable.groupby(["column", "row"], sort=False)[kind.column]}
    panels = []
    for column in columns:
        lines = tuple(
            _line(i, labels[i], groups[column, row], figure.kind) for row, i in rows.items() if (column, row) in groups
        )
        panels.append(Panel(text(figure.columns, column, ""), lines))
    return Drawing(number, figure.title or kind.y, kind, labels, tuple(panels), tuple(problems))


def _line(number: int, label: str, runs: list[Any], kind: str) -> Line:
    if kind == "spectrum":
        size = min(map(len, runs))
        x = np.arange(1, size + 1, dtype=np.float64)
        floors = [FLOOR * max(float(values[0]), 1e-300) for values in runs]
        ys = np.array([np.log(np.maximum(values[:size], floor)) for values, floor in zip(runs, floors, strict=True)])
    else:
        shared = sorted(set.intersection(*({*rounds.tolist()} for rounds, _ in runs)))
        x = np.array(shared)
        ys = np.array([np.asarray(values)[np.searchsorted(rounds, x)] for rounds, values in runs])
    std = ys.std(axis=0, ddof=1) if len(ys) > 1 else np.zeros_like(x)
    return Line(number, label, x, ys.mean(axis=0), std, len(ys))


def _look(number: int) -> dict[str, Any]:
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number // len(COLOURS) % len(DASHES)],
    }


def _limits(drawing: Drawing) -> tuple[float, float] | None:
    """Return the range of y over all panels, with a little air."""
    lows = [float((line.mean - line.std).min()) for panel in drawing.panels for line in panel.lines if len(line.x)]
    highs = [float((line.mean + line.std).max()) for panel in drawing.panels for line in panel.lines if len(line.x)]
    if not lows:
        return None
    low, high = min(lows), max(highs)
    air = 0.04 * (high - low) or 1.0
    return low - air, high + air


def _plot(plot: Plot, drawing: Drawing, panel: Panel, limits: tuple[float, float] | None) -> None:
    for line in panel.lines:
        look = _look(line.number)
        if line.n > 1 and len(line.x) > 1:
            edge = np.concatenate([line.mean - line.std, (line.mean + line.std)[::-1]])
            (band,) = plot.fill(
                np.concatenate([line.x, line.x[::-1]]), edge, color=look["color"], alpha=0.16, linewidth=0
            )
            band.set_gid(f"band-{line.number}")
        (drawn,) = plot.plot(line.x, line.mean, marker="o" if len(line.x) == 1 else "", markersize=4, **look)
        drawn.set_gid(f"line-{line.number}")
    if not panel.lines:
        plot.text(0.5, 0.5, "no finished run", transform=plot.transAxes, ha="center", va="center")
    if limits:
        plot.set_ylim(*limits)
    plot.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    plot.yaxis.set_major_locator(MaxNLocator(nbins=6))
    plot.margins(x=0.02)
    plot.set_xlabel(drawing.kind.x)


def files(drawing: Drawing) -> dict[str, bytes]:
    """Return the whole figure with its legend as ``svg``, ``pdf`` and ``png``, the same bytes for the same records."""
    with matplotlib.rc_context(STYLE):
        across = min(MOST_ACROSS, len(drawing.panels))
        down = math.ceil(len(drawing.panels) / across)
        longest = max(map(len, drawing.labels))
        legend_columns = max(1, min(len(drawing.labels), int(across * PANEL[0] / (0.55 + 0.075 * longest))))
        legend = 0.2 * math.ceil(len(drawing.labels) / legend_columns) + 0.15
        width, height = across * PANEL[0], down * PANEL[1] + legend
        canvas = Canvas(figsize=(width, height))
        FigureCanvasAgg(canvas)
        limits = _limits(drawing)
        for i, panel in enumerate(drawing.panels):
            left, top = (i % across) * PANEL[0], (i // across) * PANEL[1]
            plot = canvas.add_axes(
                (
                    (left + 0.55) / width,
                    (height - top - PANEL[1] + 0.5) / height,
                    (PANEL[0] - 0.7) / width,
                    (PANEL[1] - 0.85) / height,
                )
            )
            _plot(plot, drawing, panel, limits)
            plot.set_title(panel.title, fontsize=9.5)
            if i % across == 0:
                plot.set_ylabel(drawing.kind.y)
            else:
                plot.tick_params(labelleft=False)
        handles = [matplotlib.lines.Line2D([], [], **_look(i)) for i in range(len(drawing.labels))]
        # A space in front, because matplotlib leaves labels out that start with an underscore.
        canvas.legend(handles, [f" {label}" for label in drawing.labels], loc="lower center", ncols=legend_columns)
        return {
            "svg": save(canvas, "svg", {"Date": None}),
            "pdf": save(canvas, "pdf", {"CreationDate": None, "ModDate": None}),
            "png": save(canvas, "png", {}, dpi=150, transparent=False, facecolor="white"),
        }


def save(canvas: Canvas, suffix: str, metadata: dict[str, Any], **options: Any) -> bytes:
    """Return the file's bytes."""
    buffer = io.BytesIO()
    canvas.savefig(buffer, format=suffix, metadata=metadata, **options)
    return buffer.getvalue()


def inline(drawing: Drawing) -> list[str]:
    """Return one SVG element per panel for the page.

    Its colours follow the page, its ids are unique to the figure, it needs no style sheet, and its title
    and description say in words what is drawn.
    """
    limits, elements = _limits(drawing), []
    with matplotlib.rc_context({**STYLE, "svg.fonttype": "none", "font.size": 11}):
        for i, panel in enumerate(drawing.panels):
            canvas = Canvas(figsize=(340 / 72, 240 / 72))
            plot = canvas.add_axes((42 / 340, 38 / 240, 288 / 340, 192 / 240))
            _plot(plot, drawing, panel, limits)
            svg = save(canvas, "svg", {"Date": None}).decode()
            name, of = f"figure-{drawing.number}-{i + 1}", f"{drawing.title}, {panel.title or 'all'}"
            elements.append(embed(svg, name, of, description(drawing, panel)))
    return elements


def description(drawing: Drawing, panel: Panel) -> str:
    """Return a panel in words."""
    if not panel.lines:
        return "No finished run."
    ends = [
        f"{line.label}: from {line.mean[0]:.1f} to {line.mean[-1]:.1f} at {drawing.kind.x.lower()} {line.x[-1]:.0f}"
        for line in panel.lines
    ]
    return f"{drawing.kind.y}. {'; '.join(ends)}."


def _page_colour(colour: str) -> str:
    """Return the page's own colour for one of the style's."""
    upper = colour.upper()
    if upper == INK.upper():
        return "currentColor"
    if upper == GRID.upper():
        return "var(--grid)"
    return f"var(--line-{COLOURS.index(upper)})" if upper in COLOURS else colour


def embed(svg: str, name: str, title: str, description: str) -> str:
    """Return matplotlib's SVG as an element that a strict content security policy lets stand inside a page.

    `name` makes its ids unique in the page; `title` and `description` say in words what it shows.
    """
    parsed = ET.fromstring(svg)
    root = ET.Element("svg", {"viewBox": parsed.get("viewBox", ""), "role": "img", "class": "plot"})
    root.set("aria-labelledby", f"{name}-title {name}-description")
    ET.SubElement(root, "title", {"id": f"{name}-title"}).text = title
    ET.SubElement(root, "desc", {"id": f"{name}-description"}).text = description
    for child in parsed:
        if (copied := _copied(child, name)) is not None:
            root.append(copied)
    return ET.tostring(root, encoding="unicode")


def _copied(element: ET.Element, name: str) -> ET.Element | None:
    tag = element.tag.split("}")[-1]
    if tag in ("metadata", "style"):
        return None
    copy = ET.Element(tag)
    copy.text = element.text.strip() if element.text else None
    for key, value in element.attrib.items():
        if key == "style":
            for declaration in value.split(";"):
                prop, _, setting = (part.strip() for part in declaration.partition(":"))
                if prop and prop != "font-family":
                    copy.set(prop, _page_colour(setting))
        elif key == "id":
            if tag in ("clipPath", "path"):
                copy.set("id", f"{name}-{value}")
            elif match := re.fullmatch(r"(?:line|band)-(\d+)", value):
                copy.set("data-line", match[1])
        elif key == "clip-path":
            copy.set(key, re.sub(r"url\(#(.*)\)", rf"url(#{name}-\1)", value))
        elif key.endswith("}href"):
            copy.set("href", value.replace("#", f"#{name}-", 1))
        elif key == "d":
            copy.set(key, " ".join(value.split()))
        elif "}" not in key:
            copy.set(key, value)
    for child in element:
        if (inner := _copied(child, name)) is not None:
            copy.append(inner)
    return copy if len(copy) or copy.text or tag not in ("g", "defs") else None
