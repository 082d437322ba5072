"""FedMom: Nesterov momentum on the server."""

from typing import Annotated

from fedspan.benchmark.component import Aggregate, Component, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import choice, fixed
from fedspan.benchmark.tree import Tree, add, scale, zeros


@algorithm("fedmom")
class FedMom(Component):
    """Huo et al. 2020 (arXiv:2002.02090), Algorithm 1: the server steps with Nesterov's accelerated gradient.

    With Delta the mean update, v' = w + lr Delta and w' = v' + beta (v' - v). The state kept here is m = v' - v.
    """

    title = "FedMom"
    summary = "Nesterov momentum on the server."
    papers = ("arXiv:2002.02090",)

    beta: Annotated[float, choice(0.5, 0.9, 0.95, source="ours")] = 0.9
    lr: Annotated[float, fixed("1 is plain averaging")] = 1.0
    neutral = {"beta": 0.0, "lr": 1.0}

    def __post_init__(self) -> None:
        require(0 <= self.beta < 1, "algorithm.beta", "must lie in [0, 1)", self.beta)
        require(self.lr > 0, "algorithm.lr", "must be positive", self.lr)

    def init(self, params: Tree, shared: Tree, buffers: Tree) -> tuple[Tree, Tree]:
        return zeros(shared), {}

    def server(self, delta: Tree, agg: Aggregate) -> tuple[Tree, Tree]:
        step = scale(delta, self.lr)
        momentum = add(scale(agg.server, self.beta), step)
        return add(step, scale(momentum, self.beta)), momentum
