"""pFedMe."""

from collections.abc import Mapping
from typing import Annotated

from torch import Tensor

from fedspan.benchmark.component import Aggregate, Component, Local, Step, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import choice, fixed, log
from fedspan.benchmark.tree import Tree, prefixed, scale, under


@algorithm("pfedme")
class PFedMe(Component):
    """T. Dinh et al. 2020 (NeurIPS), Algorithm 1: personal models theta minimise ``f + lam/2 ||theta - w||^2``.

    On every batch theta takes `steps` steps of rate `personal_lr` on this objective; then w moves along
    ``lam (w - theta)`` by the protocol's SGD (Eq. 7; plain in the paper). theta starts each round from the received
    weights and carries over from batch to batch, as in the authors' code. The server moves w by ``beta`` times the mean
    update, weighted by numbers of samples as in that code (uniform in Algorithm 1). The stage ``personalised`` scores
    theta, ``trained`` scores w.

    lam, steps and beta default to the authors' values. ``lam`` times the protocol's rate is the fraction of the way to
    theta that w moves: above 1 it overshoots, and from 2 on, or earlier with momentum, it diverges; the authors' rate
    is 0.005. The same holds for theta and ``lam`` times `personal_lr`. The engine's pass at w goes unused, so training
    costs ``steps + 1`` passes per batch where the algorithm needs `steps`. Their code, unlike this one, decays theta
    (``mu``), lets all clients train in every round though only the sampled ones are averaged, and draws one batch per
    local epoch. theta has its own BatchNorm statistics.
    """

    title = "pFedMe"
    summary = "Personal models near the global one, which moves towards them."
    papers = ("dinh2020",)

    lam: Annotated[float, log(1.0, 30.0, source="ours, around the authors' 15")] = 15.0
    steps: Annotated[int, fixed("it sets the compute")] = 5
    personal_lr: Annotated[float, log(0.01, 0.1, source="ours, up to the authors' 0.1")] = 0.1
    beta: Annotated[float, choice(1.0, 2.0, source="the authors' scripts")] = 1.0

    def __post_init__(self) -> None:
        require(self.lam > 0, "algorithm.lam", "must be positive", self.lam)
        require(self.steps >= 1, "algorithm.steps", "must be at least 1", self.steps)
        require(self.personal_lr > 0, "algorithm.personal_lr", "must be positive", self.personal_lr)
        require(self.beta > 0, "algorithm.beta", "must be positive", self.beta)

    def init(
        self, params: Mapping[str, Tensor], shared: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> tuple[Tree, Tree]:
        return {}, prefixed("theta", params) | prefixed("statistics", buffers)

    def carry(self, grads: Tree, step: Step) -> Tree:
        later = 1.0 * (step.number > 0)
        kept, statistics = under("theta", step.client), under("statistics", step.client)
        theta = {path: later * kept[path] + (1 - later) * w for path, w in step.params.items()}
        for _ in range(self.steps):
            found, statistics = step.learn_at(theta, statistics)
            pulled = {path: g + self.lam * (theta[path] - step.params[path]) for path, g in found.items()}
            theta |= {path: theta[path] - self.personal_lr * g for path, g in pulled.items()}
        return prefixed("theta", theta) | prefixed("statistics", statistics)

    def grads(self, grads: Tree, step: Step) -> Tree:
        theta = under("theta", step.client)
        return {path: self.lam * (step.params[path] - theta[path]) for path in grads}

    def server(self, delta: Tree, agg: Aggregate) -> tuple[Tree, Tree]:
        return scale(delta, self.beta), {}

    def own(self, params: Tree, local: Local) -> Tree:
        return under("theta", local.client) | under("statistics", local.client)
