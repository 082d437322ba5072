"""Base class of the adaptive server optimisers of Reddi et al. 2021."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedspan.benchmark.component import Aggregate, Component
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import fixed, log
from fedspan.benchmark.tree import Tree, prefixed, root, tree_map, under, zeros


@dataclass(frozen=True)
class Adaptive(Component):
    """Reddi et al. 2021 (ICLR), Algorithm 2: per-weight server steps from two moments of the mean update D.

    ``m = beta1 m + (1 - beta1) D``, then ``w = w + lr m / (sqrt(v) + tau)``. Subclasses define the update of v, which
    starts at tau^2. There is no bias correction, as in the paper. The code released with FedDecorr 2023 starts v at 0
    and also steps BatchNorm's running statistics; here they are averaged.
    """

    lr: Annotated[float, log(1e-3, 1.0, source="the paper tunes it for every task; the range is ours")] = 0.01
    beta1: Annotated[float, fixed("the paper's")] = 0.9
    tau: Annotated[float, log(1e-5, 1e-1, source="the paper tunes it for every task; the range is ours")] = 1e-3

    def __post_init__(self) -> None:
        require(self.lr > 0, "algorithm.lr", "must be positive", self.lr)
        require(0 <= self.beta1 < 1, "algorithm.beta1", "must lie in [0, 1)", self.beta1)
        require(self.tau > 0, "algorithm.tau", "must be positive", self.tau)

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        """Return the next v from the current one and the squared mean update."""
        raise NotImplementedError

    def init(
        self, params: Mapping[str, Tensor], shared: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> tuple[Tree, Tree]:
        v = tree_map(lambda leaf: torch.full_like(leaf, self.tau**2), shared)
        return prefixed("m", zeros(shared)) | prefixed("v", v), {}

    def server(self, delta: Tree, agg: Aggregate) -> tuple[Tree, Tree]:
        m = tree_map(lambda m, d: self.beta1 * m + (1 - self.beta1) * d, under("m", agg.server), delta)
        v = tree_map(lambda v, d: self.second_moment(v, d.square()), under("v", agg.server), delta)
        move = tree_map(lambda m, v: self.lr * m / (root(v) + self.tau), m, v)
        return move, prefixed("m", m) | prefixed("v", v)
