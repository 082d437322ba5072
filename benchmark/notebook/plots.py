"""`fedspan.plot_curves` and `fedspan.plot_gains`: matplotlib figures that you can change and save."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.notebook.comparison import COMPARED, COUNTED, Comparison, between, runs_of, same_models
from fedspan.benchmark.notebook.frames import check_columns, curves

SIZE = (6.4, 3.6)  # inches
DASHES = ("-", "--", ":", "-.")  # keep the first lines distinguishable in greyscale


def plot_curves(runs: pd.DataFrame, *, results: str | Path | None = None) -> Any:
    """Return a figure of accuracy over rounds: one line per method, the mean over seeds, with a band for their range.

    Only finished runs are drawn, because the mean would jump where a diverged run stops; labels count the diverged.
    `runs` must be of one task; their records are read from the folder that they came from, or from `results`. Raises
    `UserError` for runs of several tasks, for several runs of a method and seed (with different protocols), and if no
    finished run has a curve.
    """
    check_columns(runs, *COMPARED)
    if (tasks := runs["task_id"].nunique()) > 1:
        raise UserError(f"these runs are of {tasks} tasks; choose one: runs[runs.task_id == ...]")
    counted = runs[runs["status"].isin(COUNTED)]
    for method in counted["method"].unique():
        runs_of(runs, str(method))
    lines = curves(counted[counted["status"] == "done"], results=results)
    if lines.empty:
        raise UserError("none of these runs has finished with a curve")
    figure, plot = _figure()
    for method, mine in counted.groupby("method", sort=False):
        drawn, lost = lines[lines["method"] == method], int(mine["status"].eq("diverged").sum())
        if drawn.empty and not lost:
            continue  # without a global model there is no accuracy per round
        over_seeds = drawn.groupby("round")["accuracy"].agg(["mean", "min", "max"]).astype(float)
        label = f"{method!s} ({lost} of {len(mine)} diverged)" if lost else str(method)
        dashes = DASHES[len(plot.get_lines()) % len(DASHES)]
        plot.plot(over_seeds.index.astype(int), over_seeds["mean"], dashes, label=label)
        plot.fill_between(over_seeds.index.astype(int), over_seeds["min"], over_seeds["max"], alpha=0.15)
    plot.set(xlabel="Round", ylabel="Accuracy (%)", title=str(runs["task"].iloc[0]))
    plot.legend(frameon=False)
    return figure


def plot_gains(runs: pd.DataFrame, reference: str) -> Any:
    """Return a figure of each method's gain over `reference`, in points, with 95% intervals where available.

    Open dots have no interval. If runs of the method or the reference diverged, there is no dot, and the label says so.
    Raises `UserError` if the reference has no runs or shares none with any other method, and if a method has several
    runs of one seed.
    """
    base = runs_of(runs, reference)
    counted = runs[runs["status"].isin(COUNTED) & (runs["method"] != base["method"].iloc[0])]
    same = same_models(runs)
    compared = (between(runs_of(counted, str(name)), base, same) for name in counted["method"].unique())
    found = sorted((one for one in compared if one is not None), key=_order)
    if not found:
        raise UserError(f"no method shares a run with '{reference}'")
    figure, plot = _figure(height=0.9 + 0.32 * len(found))
    for place, one in enumerate(found):
        low, high = one.interval
        if not math.isnan(low):
            plot.plot([low, high], [place, place], "-", color="tab:blue")
        if not math.isnan(gain := _gain(one)):
            plot.plot(gain, place, "o", color="tab:blue", markerfacecolor="white" if math.isnan(low) else "tab:blue")
    plot.axvline(0, color="0.6", linewidth=1)
    plot.set_yticks(range(len(found)), [f"{one.a} (runs diverged)" if one.diverged else one.a for one in found])
    plot.set(xlabel=f"Gain over {found[0].b} (points)")
    return figure


def _gain(one: Comparison) -> float:
    """Return the mean gain over tasks, with or without an interval; NaN if runs diverged."""
    return math.nan if one.diverged else one.gap.mean


def _order(one: Comparison) -> tuple[bool, float]:
    gain = _gain(one)
    return (not math.isnan(gain), 0.0 if math.isnan(gain) else gain)


def _figure(height: float = SIZE[1]) -> tuple[Any, Any]:
    """Return a figure and its axes; a notebook shows it once, as the value of a cell."""
    from matplotlib import pyplot

    figure, plot = pyplot.subplots(figsize=(SIZE[0], height), layout="constrained")
    pyplot.close(figure)  # a notebook would draw open figures a second time
    plot.spines[["top", "right"]].set_visible(False)
    return figure, plot
