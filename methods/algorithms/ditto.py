"""Ditto."""

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedspan.benchmark.component import Component, Local, Step, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.registry import later
from fedspan.benchmark.search import choice
from fedspan.benchmark.sgd import stepped
from fedspan.benchmark.tree import Tree, prefixed, under, zeros


@algorithm("ditto")
class Ditto(Component):
    """Li et al. 2021 (ICML), Algorithm 1: alongside FedAvg's model w each client trains its own model v, near w.

    In every local step v moves along the gradient of ``F(v) + lam/2 ||v - w||^2``, with w as received, on the same
    batch as the client's copy of w. v starts from the initial weights, stays on the client and has its own BatchNorm
    statistics. The stage ``personalised`` scores v, ``trained`` scores w. A client that never trained has the initial
    v. FFC's calibrations between rounds (`every`) change w's head, not v's.

    Both models use the protocol's SGD, v with its own momentum, reset every round; at momentum and weight decay 0 this
    is the authors' code, which averages the updates of w uniformly (``mean=clients``; by default, as in PFLlib, by
    numbers of ``samples``) and may choose lam on each client's validation images (``dynamic_lam``, not here). The
    penalties of add-ons apply to both.
    """

    title = "Ditto"
    summary = "Each client also trains its own model, kept near the global one."
    papers = ("li2021ditto",)
    wording = {"mean": {"samples": "", "clients": "uniform mean"}}

    lam: Annotated[float, choice(0.1, 1.0, 2.0, source="the candidates of the authors' code")] = 1.0
    mean: Literal["samples", "clients"] = later("samples")

    def __post_init__(self) -> None:
        require(self.lam >= 0, "algorithm.lam", "must not be negative", self.lam)

    @property
    def idle(self) -> frozenset[str]:
        return frozenset({"weights"} if self.mean == "samples" else ())

    def weights(self, counts: Tensor, samples: int) -> Tensor:
        return torch.ones(len(counts), dtype=counts.dtype)

    def init(
        self, params: Mapping[str, Tensor], shared: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> tuple[Tree, Tree]:
        return {}, prefixed("v", params) | prefixed("statistics", buffers) | prefixed("momentum", zeros(params))

    def carry(self, grads: Tree, step: Step) -> Tree:
        v = under("v", step.client)
        found, statistics = step.learn_at(v, under("statistics", step.client))
        pulled = {path: g + self.lam * (v[path] - step.start[path]) for path, g in found.items()}
        v, momentum = stepped(v, pulled, under("momentum", step.client), step)
        return prefixed("v", v) | prefixed("statistics", statistics) | prefixed("momentum", momentum)

    def own(self, params: Tree, local: Local) -> Tree:
        return under("v", local.client) | under("statistics", local.client)
