"""Draws docs/theory.svg: `python -m tests.theory.figure` from the root of the checkout."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from tests.theory.linear_network import (
    balanced,
    class_mean_pull,
    growth,
    pull,
    samples,
    singular_values,
    step,
    trajectory,
)

RATE = 1e-5


def rates(scatter: float, gradient, start: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return (measured, predicted) rates of four singular values at points of a run with two layers."""
    rng = np.random.default_rng(start)
    weights = balanced(rng, 6, 5, 2, np.array([1.2, 0.9, 0.6, 0.4]), 0.5)
    data = samples(rng, 6, 5, 5, 8, scatter)
    measured, predicted = [], []
    for number in range(1500):
        moved = step(weights, data, RATE)
        if number % 100 == 0:
            measured.append((singular_values(moved) - singular_values(weights)) / RATE)
            predicted.append(growth(weights, gradient(weights, data), data.x.shape[1], 0.5))
        weights = moved
    return np.concatenate(measured), np.concatenate(predicted)


def draw(path: Path) -> None:
    """Write the figure."""
    mpl.rcParams.update({"svg.hashsalt": "fedspan", "svg.fonttype": "none"})
    figure = Figure(figsize=(9, 2.9), layout="constrained")
    left, *right = figure.subplots(1, 4, width_ratios=(1.3, 1, 1, 1))
    for label, scatter, gradient, mark in (
        ("one input per class", 0.0, class_mean_pull, "o"),
        ("scattered, Eq. 44", 0.3, pull, "x"),
        ("scattered, as printed", 0.3, class_mean_pull, "."),
    ):
        left.plot(*rates(scatter, gradient)[::-1], mark, markersize=4, label=label)
    left.axline((0, 0), slope=1, color="grey", linewidth=0.8)
    left.set(xlabel="rate by the theorem", ylabel="measured rate")
    left.legend(fontsize=7)
    for axes, present in zip(right, (8, 4, 2), strict=True):
        rng = np.random.default_rng(0)
        weights = balanced(rng, 10, 8, 2, np.linspace(0.12, 0.1, 8), 0.0)
        values = trajectory(weights, samples(rng, 10, 8, present, 48 // present), 2e-3, 750, every=25)
        axes.semilogy(np.arange(len(values)) * 25, values, color="C0", linewidth=1)
        axes.minorticks_off()
        axes.set(title=f"{present} of 8 classes", xlabel="step", ylim=(0.03, 10))
    right[0].set_ylabel("singular values")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    draw(Path(__file__).parents[2] / "docs" / "theory.svg")
