"""APFL."""

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedspan.benchmark.component import Component, Local, Step, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.registry import later
from fedspan.benchmark.search import choice
from fedspan.benchmark.sgd import stepped
from fedspan.benchmark.tree import Tree, prefixed, scale, under, zeros

MIXING = "alpha"


@algorithm("apfl")
class APFL(Component):
    """Deng et al. 2020 (arXiv 2003.13461), Algorithm 1: each client mixes its own model v with the global one.

    Alongside FedAvg's local step on w, v follows the gradient in v of the loss of ``alpha v + (1 - alpha) w`` on the
    same batch, with v and w from before the step. With `adaptive`, alpha follows its own gradient (Eq. 10) at the
    protocol's learning rate, clipped to [0, 1]: in every `step`, or, as in the authors' code, only in the first step of
    a `round`. That code mixes outputs, not weights, adds 0.02 alpha to the gradient, steps w before it takes v's
    gradient, and takes alpha's after both have moved, from gradients that alpha and 1 - alpha already scale. w is
    averaged by numbers of samples (uniformly in Algorithm 1 and that code). v and alpha stay on the client; v's head
    ignores FFC's calibrations between rounds (`every`); v starts from the initial weights and uses the protocol's SGD
    with its own momentum (plain SGD in the paper). The stage ``personalised`` scores ``alpha v + (1 - alpha) w`` with
    the last global w and the mixture's own BatchNorm statistics; ``trained`` scores w.
    """

    title = "APFL"
    summary = "Each client mixes its own model with the global one at a learned ratio."
    papers = ("deng2020",)
    wording = {"adaptive": {False: "fixed mixing"}, "moves": "mixing moves every {}"}

    alpha: Annotated[float, choice(0.25, 0.5, 0.75, source="Deng et al. 2020, Sec. 5")] = 0.5
    adaptive: bool = True
    moves: Literal["step", "round"] = later("step")

    def __post_init__(self) -> None:
        require(0 <= self.alpha <= 1, "algorithm.alpha", "must lie in [0, 1]", self.alpha)

    def init(
        self, params: Mapping[str, Tensor], shared: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> tuple[Tree, Tree]:
        mixing = {MIXING: next(iter(params.values())).new_tensor(self.alpha)}
        trees = prefixed("v", params) | prefixed("statistics", buffers) | prefixed("momentum", zeros(params))
        return {}, mixing | trees

    def carry(self, grads: Tree, step: Step) -> Tree:
        v, alpha = under("v", step.client), step.client[MIXING]
        found, statistics = step.learn_at(mixed(v, step.params, alpha), under("statistics", step.client))
        if self.adaptive:
            slope = torch.stack([((v[path] - step.params[path]) * g).sum() for path, g in found.items()]).sum()
            rate = step.lr if self.moves == "step" else step.lr * (step.number == 0)
            moved = (alpha - rate * slope).clamp(0, 1)
        else:
            moved = alpha
        v, momentum = stepped(v, scale(found, alpha), under("momentum", step.client), step)
        trees = prefixed("v", v) | prefixed("statistics", statistics) | prefixed("momentum", momentum)
        return {MIXING: moved} | trees

    def own(self, params: Tree, local: Local) -> Tree:
        mine = mixed(under("v", local.client), params, local.client[MIXING])
        return mine | under("statistics", local.client)


def mixed(v: Mapping[str, Tensor], w: Mapping[str, Tensor], alpha: Tensor) -> Tree:
    """Return alpha v + (1 - alpha) w."""
    return {path: alpha * v[path] + (1 - alpha) * leaf.detach() for path, leaf in w.items()}
