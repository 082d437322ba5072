"""Expected best accuracy of a method after k trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BAND = (0.1, 0.9)  # quantiles of the best of k: an unlucky and a lucky draw of trials


@dataclass(frozen=True)
class Best:
    """Best accuracy of `k` trials: its mean and its `BAND` quantiles over all subsets of the available trials.

    If some subset holds only diverged trials, the mean is NaN and an end of the band may be infinite.
    """

    k: int
    mean: float
    low: float
    high: float


def budgets(trials: int) -> list[int]:
    """Return 1, 2, 4, ... below the number of trials, then that number."""
    return [*(2**i for i in range(trials.bit_length()) if 2**i < trials), *([trials] if trials else [])]


def expected_best(accuracies: Sequence[float], ks: Sequence[int]) -> list[Best]:
    """Return the best of k trials for each of `ks`, over all equally likely subsets of k available trials.

    The i-th smallest of n is the best of C(i - 1, k - 1) of the C(n, k) subsets, which gives mean and quantiles without
    sampling. Dodge et al. 2019 (EMNLP) do the same with subsets drawn with replacement. The binomials overflow, so the
    shares are computed from the largest accuracy down: its share is k / n, each next one follows from a ratio of two
    binomials.
    """
    ordered, n = np.sort(np.asarray(accuracies, dtype=np.float64)), len(accuracies)
    worse = np.arange(n - 1, 0, -1)  # number of trials worse than the best, the second best, ...
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
