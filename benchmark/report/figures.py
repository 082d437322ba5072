"""Figures as files and as inline SVG, in one style that is safe for colour-blind readers."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes as Plot
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullLocator

from fedspan.benchmark.report import labels
from fedspan.benchmark.report.drawing import VIEW, Drawing, Panel
from fedspan.benchmark.report.layout import Layout
from fedspan.benchmark.report.style import (
    COLOURS,
    DASHES,
    GRID,
    INK,
    LINES,
    MARKERS,
    MARKS,
    QUIET,
    SHADES,
    STEPS,
    STYLE,
    WIDE,
    fill_of,
)

FORMATS: dict[str, dict[str, Any]] = {  # options of `savefig` that give the same bytes every time
    "svg": {"metadata": {"Date": None}},
    "pdf": {"metadata": {"CreationDate": None, "ModDate": None}},
    "png": {"metadata": {}, "dpi": 200, "transparent": False, "facecolor": "white"},
}


def _look(number: int) -> dict[str, Any]:
    """Return a line's style: colour and dashes are unique among `MOST_LINES`; dashes separate neighbours in grey."""
    return {
        "color": COLOURS[number % LINES],
        "linestyle": DASHES[number % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 3.5,
        "markeredgewidth": 0,
    }


def _limits(drawing: Drawing) -> tuple[float, float] | None:
    """Return the y range over all panels, with a margin; for bars it includes 0. None without lines."""
    lows = [float((line.mean - line.std).min()) for panel in drawing.panels for line in panel.lines if len(line.x)]
    highs = [float((line.mean + line.std).max()) for panel in drawing.panels for line in panel.lines if len(line.x)]
    if not lows:
        return None
    low, high = min(lows), max(highs)
    if drawing.kind.style == "bars":
        low = min(low, 0.0)
    air = 0.04 * (high - low) or 1.0
    low, high = (low if low == 0 else low - air), high + air
    floor, roof = drawing.kind.ends
    return max(low, floor), min(high, roof + 0.02 * (high - low))


def _plot(plot: Plot, drawing: Drawing, panel: Panel, limits: tuple[float, float] | None) -> None:
    kinds = {"bars": _plot_bars, "map": _plot_map, "points": _plot_points, "sphere": _plot_sphere}
    if panel.empty:
        plot.text(0.5, 0.5, panel.note or "no finished run", transform=plot.transAxes, ha="center", va="center")
        plot.tick_params(labelbottom=bool(drawing.ticks), labelleft=False)
    kinds.get(drawing.kind.style, _plot_lines)(plot, drawing, panel)
    if limits:
        plot.set_ylim(*limits)
    if drawing.kind.same_x and limits:
        places = np.concatenate([line.x for other in drawing.panels for line in other.lines])
        air = 0.02 * np.ptp(places)
        plot.set_xlim(places.min() - air, places.max() + air)
    if panel.note and not panel.empty:
        plot.text(0.98, 0.97, panel.note, transform=plot.transAxes, ha="right", va="top")
    plot.set_xlabel(drawing.kind.x)


def _plot_lines(plot: Plot, drawing: Drawing, panel: Panel) -> None:
    for line in panel.lines:
        look = _look(line.number)
        if line.n > 1 and len(line.x) > 1:
            low, high = (np.clip(edge, *drawing.kind.ends) for edge in (line.mean - line.std, line.mean + line.std))
            (band,) = plot.fill(
                np.concatenate([line.x, line.x[::-1]]),
                np.concatenate([low, high[::-1]]),
                color=look["color"],
                alpha=0.12,
                linewidth=0,
            )
            band.set_gid(f"band-{line.number}")
        every = max(1, len(line.x) // MARKS)
        start = line.number % every if len(line.x) > every else 0
        (drawn,) = plot.plot(line.x, line.mean, markevery=(start, every), **look)
        drawn.set_gid(f"line-{line.number}")
    plot.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    plot.yaxis.set_major_locator(MaxNLocator(nbins=6))
    plot.margins(x=0.02)
    if drawing.places:
        _number_places(plot, drawing)
    else:
        _name_places(plot, drawing.ticks, 0.3)


def _number_places(plot: Plot, drawing: Drawing) -> None:
    """Label the ticks of a numeric x axis, which is logarithmic if the values span a factor of `WIDE` or more."""
    above = [place for place in drawing.places if place > 0]
    if above and max(above) >= WIDE * min(above) and min(drawing.places) >= 0:
        if len(above) == len(drawing.places):
            plot.set_xscale("log")
        else:  # zero is one step to the left of the smallest
            plot.set_xscale("symlog", linthresh=min(above))
    plot.set_xticks(drawing.places, drawing.ticks)
    plot.xaxis.set_minor_locator(NullLocator())
    plot.margins(x=0.06)


def _plot_bars(plot: Plot, drawing: Drawing, panel: Panel) -> None:
    width = 0.8 / max(len(drawing.labels), 1)
    for line in panel.lines:
        x = line.x + (line.number - (len(drawing.labels) - 1) / 2) * width
        colour, hatch = fill_of(line.number)
        for bar in plot.bar(x, line.mean, 0.9 * width, color=colour, hatch=hatch, edgecolor="white", linewidth=0):
            bar.set_gid(f"line-{line.number}")
        for place, mean, std in zip(x, line.mean, line.std, strict=True):
            (whisker,) = plot.plot([place, place], [mean - std, mean + std], color=INK, linewidth=1)
            whisker.set_gid(f"line-{line.number}")
    if drawing.level is not None:
        plot.axhline(drawing.level, color=INK, linewidth=0.9)
    plot.yaxis.set_major_locator(MaxNLocator(nbins=6))
    _name_places(plot, drawing.ticks, 0.5)


def _small() -> float:
    """Return the small font size in points: `labels.FONT` in files, larger on a page."""
    return float(0.875 * matplotlib.rcParams["font.size"])


def _name_places(plot: Plot, ticks: Sequence[str], air: float) -> None:
    if ticks:
        inches, size = plot.bbox.width / plot.figure.dpi, _small()
        plot.set_xticks(range(len(ticks)), labels.x_tick_lines(ticks, inches * labels.FONT / size), fontsize=size)
        plot.set_xlim(-air, len(ticks) - 1 + air)


def _plot_map(plot: Plot, drawing: Drawing, panel: Panel) -> None:
    if panel.shades is not None:
        rows, columns = (np.arange(side + 1) + panel.first - 0.5 for side in panel.shades.shape)
        plot.pcolormesh(columns, rows, panel.shades, cmap=SHADES, vmin=0, vmax=1, edgecolors=GRID, linewidth=0.3)
        plot.invert_yaxis()
        _colour_bar(plot, drawing.kind.shade, panel.most)
    if panel.shades is None or len(panel.shades) <= 4 * panel.shades.shape[1]:
        plot.set_aspect("equal")
    plot.grid(False)
    plot.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    plot.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))


def _colour_bar(plot: Plot, label: str, most: float) -> None:
    """Draw a map's colour bar; `most` is the value of the darkest shade."""
    shades = ScalarMappable(Normalize(0, most), SHADES.resampled(STEPS))
    bar = plot.figure.colorbar(shades, ax=plot, fraction=0.05, pad=0.03, ticks=[0, most])
    bar.ax.set_yticklabels([f"{value:,g}" for value in (0, most)], fontsize=_small())
    bar.set_label(label, fontsize=_small(), labelpad=-4)


def _plot_points(plot: Plot, drawing: Drawing, panel: Panel) -> None:
    for points in panel.points:
        for far in (True, False):
            xy = points.xy[points.far == far]
            (drawn,) = plot.plot(
                xy[:, 0], xy[:, 1], linestyle="", marker=MARKERS[points.mark % len(MARKERS)], markersize=4.5,
                color=COLOURS[points.number % len(COLOURS)], alpha=0.25 if far else 0.85, markeredgewidth=0,
            )  # fmt: skip
            drawn.set_gid(f"line-{points.number}")
    plot.grid(False)
    plot.set_xticks([])
    plot.set_yticks([])
    plot.spines["bottom"].set_visible(False)


def _plot_sphere(plot: Plot, drawing: Drawing, panel: Panel) -> None:
    angle = np.linspace(0, 2 * np.pi, 181)
    plot.plot(np.cos(angle), np.sin(angle), color=GRID, linewidth=1)
    plot.plot(np.cos(angle), np.sin(angle) * np.sin(VIEW[1]), color=GRID, linewidth=0.7)
    _plot_points(plot, drawing, panel)
    plot.set_aspect("equal")
    plot.set_xlim(-1.15, 1.15)
    plot.set_ylim(-1.15, 1.15)


def _handle(drawing: Drawing, number: int) -> Any:
    """Return the handle of a label in the legend of the files."""
    marks = {points.number: points.mark for panel in drawing.panels for points in panel.points}
    if number in marks:
        marker = MARKERS[marks[number] % len(MARKERS)]
        return Line2D([], [], linestyle="", marker=marker, markersize=5, color=COLOURS[number % len(COLOURS)])
    if drawing.kind.style == "bars":
        colour, hatch = fill_of(number)
        return Patch(facecolor=colour, hatch=hatch, edgecolor="white")
    return Line2D([], [], **_look(number))


def files(drawing: Drawing) -> dict[str, bytes]:
    """Return the whole figure as ``svg``, ``pdf`` and ``png``, the same bytes for the same records.

    It is one paper column wide, or two if it has several panels.
    """
    with matplotlib.rc_context(STYLE):
        layout = Layout.of(drawing)
        tall = layout.plot[1]
        canvas = Canvas(figsize=(layout.width, layout.height))
        limits = _limits(drawing)
        for i, panel in enumerate(drawing.panels):
            plot = canvas.add_axes(layout.box(i))
            _plot(plot, drawing, panel, limits)
            plot.set_title(panel.title, fontsize=min(8.5, 8.5 * 13 * layout.panel[0] / max(len(panel.title), 1)))
            if i % layout.across == 0:
                plot.set_ylabel("\n".join(labels.y_label_lines(drawing.kind.y, tall)), fontsize=labels.LABEL)
            elif limits:
                plot.tick_params(labelleft=False)
            if layout.names and i == layout.across - 1:
                labels.name_lines(plot, panel, tall, INK)
        if layout.legend:
            handles = [_handle(drawing, i) for i in range(len(drawing.labels))]
            # Leading space: matplotlib omits labels that start with an underscore.
            said = [f" {label}" for label in drawing.labels]
            canvas.legend(handles, said, loc="lower center", ncols=layout.columns, handlelength=2.6)
        return {suffix: save(canvas, suffix) for suffix in FORMATS}


def save(canvas: Canvas, suffix: str, **options: Any) -> bytes:
    """Return the file's bytes, the same for the same canvas; `options` replace those of `FORMATS`."""
    buffer = io.BytesIO()
    canvas.savefig(buffer, format=suffix, **FORMATS[suffix] | options)
    return buffer.getvalue()


def inline(drawing: Drawing) -> list[str]:
    """Return one SVG element per panel for the page.

    Its colours follow the page, its ids are unique to the figure, it needs no style sheet, and its title and
    description say in words what is drawn.
    """
    limits, elements = _limits(drawing), []
    with matplotlib.rc_context({**STYLE, "svg.fonttype": "none", "font.size": 11}):
        for i, panel in enumerate(drawing.panels):
            canvas = Canvas(figsize=(340 / 72, 240 / 72))
            side = 254 if drawing.kind.style == "map" else 288
            plot = canvas.add_axes((42 / 340, 38 / 240, side / 340, 192 / 240))
            _plot(plot, drawing, panel, limits)
            svg = save(canvas, "svg").decode()
            name, of = f"figure-{drawing.number}-{i + 1}", f"{drawing.title}, {panel.title or 'all'}"
            elements.append(embed(svg, name, of, description(drawing, panel)))
    return elements


def description(drawing: Drawing, panel: Panel) -> str:
    """Return a description of a panel in words."""
    if panel.empty:
        said = panel.note or "no finished run"
        return f"{said[:1].upper()}{said[1:]}."
    if panel.shades is not None:
        return f"{drawing.caption} {panel.words}"
    if panel.points:
        counts = [f"{points.label}: {len(points.xy)} points" for points in panel.points]
        return f"{drawing.caption} {'; '.join(counts)}."
    if drawing.ticks:
        called = dict(zip(drawing.places or range(len(drawing.ticks)), drawing.ticks, strict=True))
        values = [
            f"{line.label}: "
            + ", ".join(f"{mean:.4g} at {called[x]}" for x, mean in zip(line.x.tolist(), line.mean, strict=True))
            for line in panel.lines
        ]
        return f"{drawing.kind.y}. {'; '.join(values)}."
    ends = [
        f"{line.label}: from {line.mean[0]:.1f} to {line.mean[-1]:.1f} at {drawing.kind.x.lower()} {line.x[-1]:.0f}"
        for line in panel.lines
    ]
    note = f" {panel.note}." if panel.note else ""
    return f"{drawing.kind.y}. {'; '.join(ends)}.{note}"


def _page_colour(colour: str) -> str:
    """Return the page's colour for a colour of the style."""
    upper = colour.upper()
    if upper == INK.upper():
        return "currentColor"
    if upper == GRID.upper():
        return "var(--grid)"
    if upper == QUIET.upper():
        return "var(--quiet)"
    return f"var(--line-{COLOURS.index(upper)})" if upper in COLOURS else colour


def embed(svg: str, name: str, title: str, description: str) -> str:
    """Return matplotlib's SVG as an inline element that a strict content security policy allows.

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


def _own(value: str, name: str) -> str:
    """Return an attribute's value with ``url(#id)`` references made unique by the figure's `name`."""
    return re.sub(r"url\(#(.*)\)", rf"url(#{name}-\1)", value)


def _attributes(tag: str, key: str, value: str, name: str) -> dict[str, str]:
    """Return what an attribute becomes in a page: styles turn into attributes, ids and references become unique."""
    if key == "style":
        declared = ([part.strip() for part in text.partition(":")] for text in value.split(";"))
        kept = {prop: setting for prop, _, setting in declared if prop and prop != "font-family"}
        return {prop: _own(_page_colour(setting), name) for prop, setting in kept.items()}
    if key == "id" and tag in ("clipPath", "path", "pattern"):
        return {"id": f"{name}-{value}"}
    if key == "id":
        match = re.fullmatch(r"(?:line|band)-(\d+)", value)
        return {"data-line": match[1]} if match else {}
    if key in ("clip-path", "fill", "stroke"):
        return {key: _own(_page_colour(value), name)}
    if key.endswith("}href"):
        return {"href": value.replace("#", f"#{name}-", 1)}
    if key == "d":
        return {key: " ".join(value.split())}
    return {} if "}" in key else {key: value}


def _copied(element: ET.Element, name: str) -> ET.Element | None:
    tag = element.tag.split("}")[-1]
    if tag in ("metadata", "style"):
        return None
    copy = ET.Element(tag)
    copy.text = element.text.strip() if element.text else None
    for key, value in element.attrib.items():
        copy.attrib.update(_attributes(tag, key, value, name))
    for child in element:
        if (inner := _copied(child, name)) is not None:
            copy.append(inner)
    return copy if len(copy) or copy.text or tag not in ("g", "defs") else None
