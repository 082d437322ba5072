"""Base class of methods that track each client's drift and add the mean drift to the average."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedspan.benchmark.component import Aggregate, Component, Local, Step, Upload
from fedspan.benchmark.tree import Tree, add, prefixed, scale, tree_map, under, zeros

DRIFT = "h"


@dataclass(frozen=True)
class DriftCorrection(Component):
    """Acar et al. 2021 (ICLR), in the form of the authors' code: with a drift h_i for each client.

    After local training from w to w_i a client adds its update to its drift, ``h_i = h_i + w_i - w``. The server keeps
    the mean h of all clients' drifts and sets ``w = mean w_i + h``, where the mean of w_i is over participants with
    equal weights. Clients send only their weights: their mean update determines the change of h. With an add-on that
    compresses, h follows the updates that arrived and h_i those that clients computed.
    """

    def weights(self, counts: Tensor, samples: int) -> Tensor:
        return torch.ones(len(counts), dtype=counts.dtype)

    def init(
        self, params: Mapping[str, Tensor], shared: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> tuple[Tree, Tree]:
        return prefixed(DRIFT, zeros(shared)), prefixed(DRIFT, zeros(shared))

    def anchor(self, step: Step) -> Tree:
        """Return ``w - h_i``, the point that the quadratic term of the local objective pulls towards."""
        return tree_map(lambda h, w: w - h, under(DRIFT, step.client), step.start)

    def client_end(self, delta: Tree, local: Local) -> tuple[Tree, Upload, Tree]:
        h = add(under(DRIFT, local.client), delta)
        return delta, {}, prefixed(DRIFT, h)

    def server(self, delta: Tree, agg: Aggregate) -> tuple[Tree, Tree]:
        share = agg.participants / agg.clients
        h = add(under(DRIFT, agg.server), scale(delta, share))
        return add(delta, h), prefixed(DRIFT, h)
