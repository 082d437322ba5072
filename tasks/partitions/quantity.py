"""Quantity skew: clients hold unequal numbers of images from one distribution."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedspan.benchmark.task import Partition, partition
from fedspan.tasks.partitions.dirichlet import Dirichlet


@partition("quantity")
class Quantity(Partition):
    """A random permutation, cut by proportions from Dir(alpha), which the paper calls beta (Li et al. 2022).

    As in its released code, the proportions are redrawn until every client has `min_size` images, here at most 1,000
    times, and cut points are truncated to integers.
    """

    title = "Quantity"
    summary = "Clients hold unequal numbers of images, by proportions from a Dirichlet distribution: quantity skew."
    papers = ("li2022silos",)
    wording = {"alpha": "quantity alpha {}", "min_size": "{} or more images each"}

    skew_field = "alpha"

    alpha: float = 0.5
    min_size: int = 10

    def __post_init__(self) -> None:
        self._dirichlet()

    def _dirichlet(self) -> Dirichlet:
        create: Any = Dirichlet  # type checkers do not see that its decorator makes a dataclass
        return create(alpha=self.alpha, balanced=False, min_size=self.min_size)

    def split(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Sequence[np.ndarray]:
        return self._dirichlet().split(np.zeros_like(labels), 1, clients, rng)
