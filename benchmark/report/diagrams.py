"""Diagrams of an analysis: average ranks with indistinguishable rows joined, and score against cost with its front."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import matplotlib
from matplotlib.axes import Axes as Plot
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, FuncFormatter, Locator, MaxNLocator, NullFormatter

from fedspan.benchmark.names import counted_as
from fedspan.benchmark.report import labels
from fedspan.benchmark.report.analysis import Analysis, Standing, pareto
from fedspan.benchmark.report.axes import in_words
from fedspan.benchmark.report.figures import FORMATS, embed, save
from fedspan.benchmark.report.style import COLOURS, INK, QUIET, STYLE, TWO_COLUMNS
from fedspan.benchmark.report.table import TableRow, Tabulated
from fedspan.benchmark.report.units import COST_COLUMNS, CostColumn

LEAST_ROWS, MOST_ROWS, LEAST_BLOCKS = 3, 20, 6  # for a legible diagram of ranks
LEAST_POINTS = 3  # for a diagram of costs
MOST_NAMES = 16  # of a plot of costs; of more points, those within SAME_COST of a reference's cost remain unnamed
SAME_COST = 0.05
LETTERS = 30  # per line of a name
FONT, LETTER = 7.5, 4.5  # font size of a point's name and mean width of a letter, in points
NAME_LETTERS = 48  # per line of a point's name
PITCH, LINE = 0.14, 0.115  # inches from name to name, and from line to line of a name
NARROWEST = 1.5  # inches, of a plot beside names
SIDE_LETTER = 0.064  # inches per letter of the y axis label

Point = tuple[float, float, int]  # mean cost, mean score, row number


@dataclass(frozen=True)
class Diagram:
    """A picture: its files by suffix, its inline element for the page, and its caption."""

    name: str
    title: str
    caption: str
    files: dict[str, bytes]
    inline: str


def _diagram(name: str, title: str, caption: str, words: str, draw: Callable[[], Canvas]) -> Diagram:
    with matplotlib.rc_context(STYLE):
        canvas = draw()
        files = {suffix: save(canvas, suffix) for suffix in FORMATS}
    with matplotlib.rc_context({**STYLE, "svg.fonttype": "none"}):
        inline = embed(save(draw(), "svg").decode(), name, title, words)
    return Diagram(name=name, title=title, caption=caption, files=files, inline=inline)


def row_in_words(table: Tabulated, row: TableRow, without: str = "") -> str:
    """Return a row's labels in plain words, except the one of the axis `without`."""
    labels = zip(table.row_axes, row.labels, strict=True)
    return ", ".join(in_words(axis, label) for axis, label in labels if axis != without) or "all"


def average_ranks(analysis: Analysis) -> list[Diagram]:
    """Return diagrams of the rows' average ranks, with bars over indistinguishable rows; none for too few or too many.

    On a tuned board default and tuned rows have a diagram each, as they are ranked separately. The layout is that of
    Demšar 2006 (JMLR 7, Figure 1); the bars use the same pairwise comparisons as the places, as Benavoli et al. 2016
    (JMLR 17) advise instead of Nemenyi's test.
    """
    kinds = dict.fromkeys(standing.kind for standing in analysis.standings)
    drawn = (_ranks_of(analysis, [s for s in analysis.standings if s.kind == kind], kind) for kind in kinds)
    return [diagram for diagram in drawn if diagram is not None]


def _ranks_of(analysis: Analysis, standings: Sequence[Standing], kind: str) -> Diagram | None:
    """Return the diagram of one kind's rows, which share all blocks, so that each pair was compared."""
    blocks = standings[0].blocks
    if not LEAST_ROWS <= len(standings) <= MOST_ROWS or blocks < LEAST_BLOCKS:
        return None
    names = {s.number: row_in_words(analysis.table, s.row) for s in standings}
    ranks = {s.number: s.rank for s in standings}
    order = sorted(ranks, key=lambda number: (ranks[number], number))
    bars = joined(order, analysis.significant_pairs)
    every = all(frozenset(pair) in analysis.significant_pairs for pair in itertools.combinations(order, 2))
    says = "All rows differ significantly" if every else "Neighbours differ significantly"
    says = "Dots on a bar are rows without a significant difference" if bars else says
    caption = (
        f"Average rank over the {blocks} pairs of column and seed that every{kind and f' {kind}'} row has; 1 is best. "
        f"{says}."
        + (" Rows without a common bar need not differ: a bar ends at the first pair that does." if bars else "")
    )
    words = f"{says}. " + "; ".join(f"{names[number]}: {ranks[number]:.2f}" for number in order) + "."
    words += "".join(f" A bar joins {names[group[0]]} to {names[group[-1]]}." for group in bars)
    name = f"ranks-{analysis.table.number}{kind and f'-{kind}'}"
    title = f"Average ranks{kind and f' of {kind} rows'}"
    return _diagram(name, title, caption, words, lambda: _draw_ranks(ranks, names, order, bars))


def joined(order: Sequence[int], significant_pairs: Collection[frozenset[int]]) -> list[list[int]]:
    """Return the maximal stretches of `order`, of two rows or more, that contain no pair of `significant_pairs`."""
    found: list[list[int]] = []
    last = -1
    for start in range(len(order)):
        end = start
        while end + 1 < len(order) and all(
            frozenset((order[end + 1], row)) not in significant_pairs for row in order[start : end + 1]
        ):
            end += 1
        if end > max(last, start):
            found.append(list(order[start : end + 1]))
        last = max(last, end)
    return found


def _draw_ranks(ranks: dict[int, float], names: dict[int, str], order: list[int], groups: list[list[int]]) -> Canvas:
    rows = len(order)
    left = math.ceil(rows / 2)
    lines = {number: labels.wrapped(f"{names[number]} ({ranks[number]:.2f})", LETTERS) for number in order}
    pitch, top = 0.115 * max(map(len, lines.values())) + 0.07, 0.3  # inches
    bars = 0.11 * len(groups) + 0.1
    width, height = TWO_COLUMNS, top + bars + pitch * left + 0.15
    canvas = Canvas(figsize=(width, height))
    plot = canvas.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    plot.set_axis_off()
    margin = 0.3 + 0.063 * max(len(line) for found in lines.values() for line in found)

    def x(rank: float) -> float:
        return margin + (rank - 1) / (rows - 1) * (width - 2 * margin)

    plot.plot([x(1), x(rows)], [top, top], color=INK, linewidth=0.9)
    step = max(1, math.ceil(rows / 12))
    for tick in range(1, rows + 1, step):
        plot.plot([x(tick)] * 2, [top - 0.06, top], color=INK, linewidth=0.9)
        plot.text(x(tick), top - 0.09, str(tick), ha="center", va="bottom", fontsize=8)
    for level, group in enumerate(groups):
        ends, y = [x(ranks[group[0]]), x(ranks[group[-1]])], top + 0.12 + 0.11 * level
        plot.plot(ends, [y, y], color=COLOURS[0], linewidth=2.4, solid_capstyle="butt")
        plot.plot([x(ranks[number]) for number in group], [y] * len(group), "o", color=COLOURS[0], markersize=3.6)
    for i, number in enumerate(order):
        first = i < left
        y = top + bars + pitch * (i if first else rows - 1 - i) + 0.1
        end = margin - 0.1 if first else width - margin + 0.1
        plot.plot([x(ranks[number]), x(ranks[number]), end], [top, y, y], color=QUIET, linewidth=0.8)
        plot.text(
            end + (-0.06 if first else 0.06), y, "\n".join(lines[number]), ha="right" if first else "left", va="center",
            fontsize=7.5, linespacing=1.05,
        )  # fmt: skip
    return canvas


def score_against_cost(analysis: Analysis) -> Diagram | None:
    """Return the rows' mean scores against each mean cost, both over the common columns, with the Pareto front.

    Time is omitted if the runs come from several kinds of machine, or shared theirs. None if no cost has enough
    distinct points.
    """
    table = analysis.table
    columns = [column for column in COST_COLUMNS if not (column.timed and table.why_untimed)]
    every = {column.title: _points(analysis, column) for column in columns}
    writes = {column.title: column.write for column in columns}
    points = {
        name: found
        for name, found in every.items()
        if len(found) >= LEAST_POINTS and len({writes[name](cost) for cost, *_ in found}) > 1
    }
    if not points:
        return None
    better = table.metric.better
    fronts = {
        name: [found[i] for i in pareto([(cost, score) for cost, score, _ in found], better)]
        for name, found in points.items()
    }
    named = {name: _named(found, fronts[name], analysis) for name, found in points.items()}
    text = {s.number: row_in_words(table, s.row) for s in analysis.standings}
    said = "; ".join(f"{name}: {', '.join(text[n] for *_, n in front)}" for name, front in fronts.items())
    caption = _caption_of_costs(analysis, all_named=named == points)

    def draw() -> Canvas:
        lines = {n: labels.wrapped(text[n], NAME_LETTERS) for found in named.values() for *_, n in found}
        tall = max(1.5, *(sum(_height(lines[n]) for *_, n in found) for found in named.values()))
        beside = 0.2 + LETTER / 72 * max(len(line) for name in lines.values() for line in name)
        down = tall + 0.65
        height = down * len(points)
        canvas = Canvas(figsize=(TWO_COLUMNS, height))
        heading = labels.wrapped(table.metric.heading, int(tall / SIDE_LETTER))
        left = 0.6 + 0.13 * (len(heading) - 1)
        wide = max(NARROWEST, TWO_COLUMNS - left - beside)
        for i, (name, found) in enumerate(points.items()):
            bottom = height - down * (i + 1) + 0.5
            plot = canvas.add_axes((left / TWO_COLUMNS, bottom / height, wide / TWO_COLUMNS, tall / height))
            _draw_costs(plot, found, fronts[name], writes[name])
            _name(plot, named[name], lines, tall)
            plot.set_xlabel(name)
            plot.set_ylabel("\n".join(heading), fontsize=8)
        return canvas

    return _diagram(f"cost-{table.number}", "Score against cost", caption, f"On the front, by {said}.", draw)


def _caption_of_costs(analysis: Analysis, all_named: bool) -> str:
    table = analysis.table
    shared = f"the {counted_as(analysis.shared, 'column')} that all rows have"
    scope = ("all columns" if analysis.shared == analysis.columns else shared) + analysis.once
    said = [
        f"{table.metric.heading}, against cost: both are means over {scope}.",
        "On the line: no other row is better and cheaper.",
    ]
    if table.why_untimed:
        said.append(f"Times are omitted: {table.why_untimed}.")
    if not all_named:
        said.append(f"Off the line, rows that cost as much as the reference, within {SAME_COST:.0%}, are not named.")
    return " ".join(said)


def _named(points: list[Point], front: list[Point], analysis: Analysis) -> list[Point]:
    """Return the points to name: all, or of many the front, the references and those of another cost."""
    if len(points) <= MOST_NAMES:
        return points
    references = {s.number for s in analysis.standings if s.row in analysis.references}
    bases = [cost for cost, _, number in points if number in references]
    return [
        point
        for point in points
        if point in front or point[2] in references or all(abs(point[0] - base) > SAME_COST * base for base in bases)
    ]


def _points(analysis: Analysis, column: CostColumn) -> list[Point]:
    """Return (mean cost, mean score, row number) of each row with both, over the common columns."""
    return [
        (value, s.mean, s.number)
        for s in analysis.standings
        if math.isfinite(s.mean) and math.isfinite(value := _cost(s.row, analysis, column))
    ]


def _cost(row: TableRow, analysis: Analysis, column: CostColumn) -> float:
    """Return a row's mean cost over the tasks of the common columns; NaN if unknown for one, or without columns."""
    tasks = [mine for task in analysis.table.tasks if (mine := analysis.common_of(task))]
    costs = [fmean(column.of(entry.cost) for i in mine if (entry := row.entries[i])) for mine in tasks]
    return fmean(costs) if costs else math.nan


def _draw_costs(
    plot: Plot,
    points: list[Point],
    front: list[Point],
    write: Callable[[float], str],
) -> None:
    costs = [cost for cost, *_ in points]
    least = min(cost for cost in costs if cost)
    if max(costs) > 20 * least:
        plot.set_xscale("symlog", linthresh=least) if 0 in costs else plot.set_xscale("log")
        plot.locator_params(axis="x", numticks=4)
        plot.xaxis.set_minor_formatter(NullFormatter())
    else:
        plot.xaxis.set_major_locator(_readable(min(costs), max(costs), write))
    plot.plot([c for c, *_ in front], [s for _, s, _ in front], color=COLOURS[0], drawstyle="steps-post", linewidth=1.4)
    chosen = {number for *_, number in front}
    for cost, score, number in points:
        on = number in chosen
        plot.plot([cost], [score], "o", color=COLOURS[0] if on else QUIET, markersize=5 if on else 4)
    plot.margins(0.06, 0.1)
    plot.xaxis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))
    plot.yaxis.set_major_locator(MaxNLocator(nbins=5))


def _readable(low: float, high: float, write: Callable[[float], str]) -> Locator:
    """Return the ticks of an axis from `low` to `high`, few enough for distinct labels: at least the middle."""
    for bins in (3, 2):
        locator = MaxNLocator(nbins=bins)
        written = [write(value) for value in locator.tick_values(low, high)]
        if len(set(written)) == len(written):
            return locator
    return FixedLocator([(low + high) / 2])


def _height(name: Sequence[str]) -> float:
    """Return the inches that the lines of a point's name take."""
    return PITCH + LINE * (len(name) - 1)


def _name(plot: Plot, points: list[Point], names: Mapping[int, Sequence[str]], height: float) -> None:
    """Write the lines of each point's name beside the plot, `height` inches tall, with a line to the point."""
    plot.autoscale_view()
    low, high = plot.get_ylim()
    order = sorted(points, key=lambda point: (point[1], -point[0]))
    sizes = [_height(names[number]) / height for *_, number in order]
    ends = labels.spread_out([(score - low) / (high - low) for _, score, _ in order], sizes)
    for (cost, score, number), y in zip(order, ends, strict=True):
        plot.annotate(
            "\n".join(names[number]), (cost, score), (1.03, y), "data", "axes fraction", fontsize=FONT, va="center",
            ha="left", annotation_clip=False, linespacing=1.05,
            arrowprops={"arrowstyle": "-", "color": QUIET, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3,
                        "relpos": (0, 0.5)},
        )  # fmt: skip
