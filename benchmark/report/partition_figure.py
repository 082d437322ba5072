"""Drawings of a partition, as a figure and for the terminal."""

from __future__ import annotations

from collections.abc import Iterable

import matplotlib
import numpy as np
from matplotlib.axes import Axes as Plot
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedspan.benchmark.data.shares import Shares
from fedspan.benchmark.errors import plain
from fedspan.benchmark.report.figures import save
from fedspan.benchmark.report.style import COLOURS, QUIET, STYLE

MOST_DRAWN = 100  # clients in the figure
MOST_LISTED = 30  # clients in the terminal
MOST_NAMED = 25  # classes that are labelled by name
LEAST_CIRCLE = 8  # points across; smaller cells are shaded instead
BLOCKS = "▁▂▃▄▅▆▇█"
NONE = "·"


def terminal(found: Shares) -> RenderableType:
    """Return a table with one line per client: its number of images and a bar per class, as high as its images."""
    clients = len(found.sizes)
    listed = clients if clients <= MOST_LISTED else MOST_LISTED - 10
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("client", justify="right")
    table.add_column("images", justify="right")
    if found.tested is not None:
        table.add_column("test", justify="right")
    for name, rows in _matrices(found).items():
        table.add_column(f"per {name}, 0 to {len(rows) - 1}", overflow="fold")
    for client in range(listed):
        own = [] if found.tested is None else [f"{found.tested[client]:,}"]
        bars = [_bars(np.array(list(rows.values())), client) for rows in _matrices(found).values()]
        table.add_row(str(client), f"{found.sizes[client]:,}", *own, *map(Text, bars))
    lines = [f"and {clients - listed:,} more clients"] if listed < clients else []
    return Group(Text(found.title, style="bold"), table, *map(Text, [*lines, *found.facts]))


def _matrices(found: Shares) -> dict[str, dict[str, np.ndarray]]:
    return {"class": found.classes} | ({"domain": found.domains} if found.domains else {})


def _bars(counts: np.ndarray, client: int) -> str:
    """Return a column of `counts` [rows, clients] as bars, scaled by the largest count of any client."""
    heights = np.ceil(counts[:, client] * len(BLOCKS) / counts.max()).astype(int)
    return "".join(BLOCKS[height - 1] if height else NONE for height in heights)


def figure(found: Shares, suffix: str = "svg") -> bytes:
    """Return the figure of a partition in one of `FORMATS`.

    Bars on top show client sizes; below, each class of each client has a circle with area proportional to its images.
    Cells too small for circles, with many classes or clients, are shaded instead.
    """
    clients = min(len(found.sizes), MOST_DRAWN)
    matrices = _matrices(found)
    with matplotlib.rc_context({**STYLE, "axes.spines.bottom": False, "axes.grid": False}):
        rows = sum(map(len, matrices.values()))
        wide, high = min(0.28, 9 / clients), min(0.28, 8 / rows)  # cell size in inches
        names = max((len(name) for named in matrices.values() for name in _labels(named)), default=0)
        left, right, bars, gap, bottom = 0.75 + 0.075 * names, 0.2, 0.6, 0.12, 0.5
        circles = 72 * min(wide, high) >= LEAST_CIRCLE
        most = max(own[:clients].max() for own in found.classes.values())
        notes = [f"{'area: images' if circles else 'shade: square root of images'}, at most {most:,} of a class"]
        if clients < len(found.sizes):
            notes.append(f"the first {clients} of {len(found.sizes):,} clients are drawn")
        top = 0.55 + 0.15 * len([*found.facts, *notes])
        width = max(left + clients * wide + right, 6.2)
        height = top + bars + sum(gap + len(named) * high for named in matrices.values()) + bottom
        canvas = Canvas(figsize=(width, height))
        canvas.text(0.12 / width, 1 - 0.12 / height, found.title, va="top", weight="bold")
        canvas.text(0.12 / width, 1 - 0.32 / height, "\n".join([*found.facts, *notes]), va="top", fontsize=7.5)

        def panel(below: float, tall: float) -> Plot:
            box = (left / width, (height - below - tall) / height, clients * wide / width, tall / height)
            plot = canvas.add_axes(box, xlim=(-0.5, clients - 0.5))
            plot.tick_params(labelbottom=False)
            return plot

        plot = panel(top, bars)
        _draw_sizes(plot, found.sizes[:clients], None if found.tested is None else found.tested[:clients])
        below = top + bars
        for (kind, named), colour in zip(matrices.items(), COLOURS, strict=False):
            plot = panel(below + gap, len(named) * high)
            counts = np.array([own[:clients] for own in named.values()])
            if circles:
                _draw_circles(plot, counts, 72 * min(wide, high), colour)
            else:
                shade = np.sqrt(counts / counts.max())
                plot.imshow(to_rgba_array(colour)[0, :3] * np.ones((*shade.shape, 3)), alpha=shade, aspect="auto")
            _label_rows(plot, kind, _labels(named))
            below += gap + len(named) * high
        plot.tick_params(labelbottom=True)
        plot.set_xlabel("client")
        return save(canvas, suffix)


def _draw_sizes(plot: Plot, sizes: np.ndarray, tested: np.ndarray | None) -> None:
    at = np.arange(len(sizes))
    plot.bar(at, sizes, width=0.7, color=COLOURS[0], label="train")
    if tested is not None:
        plot.bar(at, tested, bottom=sizes, width=0.7, color=QUIET, label="own test")
        plot.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, fontsize=7.5, borderpad=0, borderaxespad=0.2)
    plot.set_ylabel("images")
    plot.set_xticks([])
    plot.yaxis.set_major_locator(MaxNLocator(nbins=2, integer=True))


def _draw_circles(plot: Plot, counts: np.ndarray, points: float, colour: str) -> None:
    row, column = np.nonzero(counts)
    area = (0.95 * points) ** 2 * counts[row, column] / counts.max()
    plot.scatter(column, row, s=area, color=colour, linewidths=0, clip_on=False, gid="circles")
    plot.set_ylim(len(counts) - 0.5, -0.5)


def _labels(named: Iterable[str]) -> list[str]:
    """Return names with unprintable characters escaped, as folders may have; none if they are too many."""
    names = [plain(name) for name in named]
    return names if len(names) <= MOST_NAMED else []


def _label_rows(plot: Plot, kind: str, names: list[str]) -> None:
    plot.set_ylabel(kind)
    plot.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    if names:
        plot.set_yticks(np.arange(len(names)), names)
    else:
        plot.yaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
