"""Figures as data: their kind, and their panels of lines, points or shades."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

MOST_LINES = 28  # distinguishable by colour and dashes
MOST_PANELS = 24
FLOOR = 1e-12  # singular values below this share of the largest are rounding noise
OVER_SEEDS = "mean of the seeds, shaded ± one sample standard deviation."
ONE_SEED = "one seed."
FLOORED = " Logarithms are natural. Values below 1e-12 of the largest are rounding noise and are drawn at that floor."
VIEW = np.deg2rad([30.0, 20.0])  # azimuth and elevation of the view of a sphere

Style = Literal["lines", "bars", "map", "points", "sphere"]


@dataclass(frozen=True)
class Kind:
    """Kind of figure: axis labels, frame column, and `lacking`, which completes "records hold ..." for absent data.

    Values lie within `ends`; `shade` is the meaning of a map's shades. With `same_x` all panels share one x range,
    because they are compared by x.
    """

    x: str
    y: str
    column: str
    lacking: str
    remark: str = ""
    style: Style = "lines"
    caption: str = ""
    ends: tuple[float, float] = (-math.inf, math.inf)
    shade: str = ""
    same_x: bool = False

    @property
    def of_one_row(self) -> bool:
        """Whether a panel shows a single row, so that each row needs its own panel."""
        return self.style in ("map", "points", "sphere") or self.column in ("penalties", "local_spectra")


PERCENT = (0.0, 100.0)
KINDS = {
    "accuracy": Kind(
        x="Round",
        y="Test accuracy (%)",
        column="curve",
        lacking="no accuracy per round (their clients keep their own weights)",
        ends=PERCENT,
    ),
    "accuracy_over_time": Kind(
        x="Simulated time (s)",
        y="Test accuracy (%)",
        column="over_time",
        lacking="no simulated time; choose a fleet with a clock",
        ends=PERCENT,
        remark=" At each time, the accuracy of the last evaluated round by then, as long as all seeds train.",
        same_x=True,
    ),
    "spectrum": Kind(
        x="Index k",
        y="Log singular value",
        column="spectrum",
        lacking="no spectra; set diagnostics.spectra=true",
        remark=FLOORED,
    ),
    "local_spectrum": Kind(
        x="Index k",
        y="Log singular value",
        column="local_spectra",
        lacking="no spectra of local models; set diagnostics.spectra=true and diagnostics.clients",
        remark=FLOORED,
    ),
    "gap": Kind(
        x="Index k",
        y="Log singular value",
        column="local_spectra",
        lacking="no spectra of local models; set diagnostics.spectra=true and diagnostics.clients",
        remark=" R is the mean over k of the log ratio of local to global singular values." + FLOORED,
    ),
    "sweep": Kind(x="", y="", column="stages", lacking="no such score"),
    "bars": Kind(x="", y="", column="stages", lacking="no such score", style="bars"),
    "penalty": Kind(
        x="Local epoch",
        y="Penalty without its coefficient",
        column="penalties",
        lacking="no penalties; set diagnostics.penalties=true",
        caption="Mean of the penalty, without its coefficient, over the images of each local epoch of one round, one "
        "line per client; first seed.",
    ),
    "shares": Kind(
        x="Client",
        y="Class",
        column="shares",
        lacking="no shares of the clients; set diagnostics.shares=true",
        style="map",
        shade="Images",
        caption="Images of each class on each client (white: none, darkest: the panel's maximum); first seed.",
    ),
    "spaces": Kind(
        x="k",
        y="k′",
        column="spaces",
        lacking="no singular spaces; set diagnostics.spaces=true",
        style="map",
        shade="|u_k · v_k′|",
        caption="|u_k · v_k′| of the k-th left singular vector of the product of the first layers and the k′-th right "
        "one of the classifier: white 0, dark 1; first seed.",
    ),
    "sphere": Kind(
        x="",
        y="",
        column="embedding",
        lacking="no points on the sphere; set diagnostics.embedding=sphere",
        style="sphere",
        caption="Representations of test images, centred, along their three directions of largest variance, at unit "
        "length; pale points lie on the far side; first seed.",
    ),
    "tsne": Kind(
        x="",
        y="",
        column="embedding",
        lacking="no layout of representations; set diagnostics.embedding=tsne",
        style="points",
        caption="Representations of test images laid out by t-SNE, all models of a panel together; first seed.",
    ),
}


@dataclass(frozen=True)
class PlotLine:
    """Mean and sample standard deviation of `n` seeds at each x; `number` is the legend entry, equal in all panels."""

    number: int
    label: str
    x: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    n: int


@dataclass(frozen=True)
class Points:
    """Points [n, 2] of one legend entry; `far` [n] flags points on the far side, `mark` is the marker's number."""

    number: int
    label: str
    xy: np.ndarray
    mark: int
    far: np.ndarray


@dataclass(frozen=True)
class Panel:
    """One column: lines (or bars), points, or a map of shades; `note` is written in its corner.

    A map is [rows, columns] of 0..1, where 1 stands for `most`; its rows and columns are numbered from `first`, and
    `words` describe its values.
    """

    title: str
    lines: tuple[PlotLine, ...] = ()
    note: str = ""
    points: tuple[Points, ...] = ()
    shades: np.ndarray | None = None
    first: int = 1
    words: str = ""
    most: float = 1.0

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not self.lines and not self.points and self.shades is None


@dataclass(frozen=True)
class Drawing:
    """A figure ready to be drawn; `labels` are its legend entries.

    `ticks`, if any, label x at 0, 1, ..., or at `places` where x is numeric. Bars have a baseline at `level`, the value
    that they are compared with.
    """

    number: int
    title: str
    kind: Kind
    labels: tuple[str, ...]
    panels: tuple[Panel, ...]
    problems: tuple[str, ...]
    ticks: tuple[str, ...] = field(default=())
    places: tuple[float, ...] = ()
    level: float | None = None

    @property
    def caption(self) -> str:
        """One-line description of what is drawn."""
        if self.kind.caption:
            return self.kind.caption
        over = f"{self.kind.x[:1].lower()}{self.kind.x[1:]}"
        several = any(line.n > 1 for panel in self.panels for line in panel.lines)
        return f"{self.kind.y} against {over}: {OVER_SEEDS if several else ONE_SEED}{self.kind.remark}"
