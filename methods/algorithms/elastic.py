"""Elastic aggregation."""

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedspan.benchmark.component import Aggregate, Component, Local, Upload, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import choice, linear
from fedspan.benchmark.tree import Tree, add, scale, tree_map, zeros


@algorithm("elastic")
class Elastic(Component):
    """Chen et al. 2023 (CVPR): the weights to which the model's output is most sensitive move least.

    ``w = w + zeta D`` elementwise, with D the mean update and ``zeta = 1 + tau - Omega / max Omega`` (Eq. 6 and 7):
    from tau for the most sensitive weight to 1 + tau. Omega is the sample-weighted mean of the participants' Omega_k,
    each measured before training, over the client's images in batches, without labels:
    ``Omega_k = mu Omega_k + (1 - mu) |g|`` with g the gradient of the logits' mean squared norm (Eq. 5). tau and mu
    default to the authors' 0.5 and 0.95.

    We know of no code released with the paper; this follows its abstract and others' notes on the equations. The
    maximum is over the whole model (``scope=tensor``: over each tensor), Omega_k starts at 0 and is kept between
    rounds, and batches run in evaluation mode, not augmented. The elastic aggregation of OpenFed, a library of the
    paper's first author, takes the maximum of each tensor, measures in training mode, and has a mu of 0.9. FL-bench's
    method of this name differs: one sensitivity per tensor, of the cross-entropy, relative to the largest among
    participants, on 30% of the images, which are then excluded from training.
    """

    title = "Elastic aggregation"
    summary = "The server moves a weight less if the clients' outputs depend on it more."
    papers = ("chen2023",)

    tau: Annotated[float, linear(0.0, 1.0, source="ours, around the authors' 0.5")] = 0.5
    mu: Annotated[float, choice(0.5, 0.9, 0.95, 0.99, source="ours, around the authors' 0.95")] = 0.95
    scope: Literal["model", "tensor"] = "model"

    def __post_init__(self) -> None:
        require(self.tau >= 0, "algorithm.tau", "must not be negative", self.tau)
        require(0 <= self.mu < 1, "algorithm.mu", "must lie in [0, 1)", self.mu)

    def init(
        self, params: Mapping[str, Tensor], shared: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> tuple[Tree, Tree]:
        return {}, zeros(shared)

    def client_start(self, params: Tree, local: Local) -> tuple[Tree, Tree]:
        omega = dict(local.client)
        for batch in torch.arange(local.n).split(local.protocol.batch_size):
            slope = local.output_grad_at(params, squared_norm, batch)
            omega = add(scale(omega, self.mu), {path: (1 - self.mu) * slope[path].abs() for path in omega})
        return params, omega

    def client_end(self, delta: Tree, local: Local) -> tuple[Tree, Upload, Tree]:
        return delta, scale(local.client, local.n), dict(local.client)

    def server(self, delta: Tree, agg: Aggregate) -> tuple[Tree, Tree]:
        most = {path: leaf.max() for path, leaf in agg.sums.items()}
        if self.scope == "model":
            most = dict.fromkeys(most, torch.stack(list(most.values())).max())
        relative = {path: leaf / most[path].clamp(min=torch.finfo(leaf.dtype).tiny) for path, leaf in agg.sums.items()}
        return tree_map(lambda d, part: d * (1 + self.tau - part).to(d), delta, relative), {}


def squared_norm(features: Tensor, logits: Tensor) -> Tensor:
    """Return the mean over images of the logits' squared norm."""
    return logits.square().sum(1).mean()
