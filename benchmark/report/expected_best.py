"""How good a method is after k trials: the expected best of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BAND = (0.1, 0.9)  # of the expected best: how lucky or unlucky a draw of trials is


@dataclass(frozen=True)
class Best:
    """The best accuracy of `k` trials: its mean over all subsets of the trials at hand, and `BAND` of them.

    Where a subset may hold diverged trials alone there is no mean, and an end of the band may be infinite.
    """

    k: int
    mean: float
    low: float
    high: float


def budgets(trials: int) -> list[int]:
    """Return 1, 2, 4, ... below a number of trials, and that number."""
    return [*(2**i for i in range(trials.bit_length()) if 2**i < trials), *([trials] if trials else [])]


def expected_best(accuracies: Sequence[float], ks: Sequence[int]) -> list[Best]:
    """Return the best of k trials, over all subsets of k of those at hand, each as likely.

    The i-th smallest of n is the best of C(i - 1, k - 1) of the C(n, k) subsets, which gives mean and quantiles without
    drawing any. As in Dodge et al. 2019 (EMNLP), whose subsets are drawn with replacement. These numbers overflow; the
    share of the best is k / n, and that of each before it follows from the ratio of two of them.
    """
    ordered, n = np.sort(np.asarray(accuracies, dtype=np.float64)), len(accuracies)
    worse = np.arange(n - 1, 0, -1)  # how many are worse than the best, the second best, ...
    found = []
    for k in ks:
        falls = np.maximum(worse - k + 1, 0) / worse  # C(worse - 1, k - 1) / C(worse, k - 1)
        chances = k / n * np.cumprod([1.0, *falls])[::-1]
        possible = chances > 0
        mean = float(chances[possible] @ ordered[possible]) if np.isfinite(ordered[possible]).all() else math.nan
        reached = np.cumsum(chances)
        low, high = (float(ordered[np.argmax(reached >= share - 1e-12)]) for share in BAND)
        found.append(Best(k, mean, low, high))
    return found
