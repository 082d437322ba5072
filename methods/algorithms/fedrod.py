"""Fed-RoD."""

from collections.abc import Mapping
from typing import Annotated, Literal

import torch.nn.functional as F
from torch import Tensor

from fedspan.benchmark.component import Component, Local, Step, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.head import in_head
from fedspan.benchmark.net import one_hot
from fedspan.benchmark.registry import later
from fedspan.benchmark.search import choice
from fedspan.benchmark.sgd import stepped
from fedspan.benchmark.tree import Tree, add, clone, prefixed, under, zeros


@algorithm("fedrod")
class FedRoD(Component):
    """Chen and Chao 2022 (ICLR): a generic head trained on a balanced loss, and a personal head beside it.

    Body and generic head minimise the balanced softmax, the cross-entropy of ``g + gamma log n_k`` with logits g and
    n_k the client's images per class, and are averaged; a class without images leaves the softmax, or with
    ``absent=kept`` counts as one image (FedETF's authors). Each client adds to g the logits of its own head, which
    minimises the cross-entropy of the sum by the protocol's SGD; its gradient reaches neither body nor generic head.
    The stage ``trained`` scores the generic model, ``personalised`` the sum. This is the variant with a linear personal
    head; the one with heads from a hypernetwork is not implemented.

    At gamma 0 the loss of the generic head is the plain cross-entropy over all classes, whatever `absent` says.

    Personal heads stay on their clients and start from 0, so a client that never trained has the generic model; with
    ``start=generic`` they start from the initial generic head (FedETF's authors, FL-bench). Other public code trains
    the body on the personal loss too (FL-bench) and uses no momentum for the personal head (FedETF's authors).
    """

    title = "Fed-RoD"
    summary = "A shared head trained on a balanced loss, and on top of it a personal head for each client."
    papers = ("chen2022",)
    wording = {
        "start": {"zero": "", "generic": "personal heads from the generic one"},
        "absent": {"removed": "", "kept": "absent classes kept"},
    }

    gamma: Annotated[float, choice(0.5, 1.0, 2.0, source="ours, around the paper's 1")] = 1.0
    start: Literal["zero", "generic"] = later("zero")
    absent: Literal["removed", "kept"] = later("removed")

    def __post_init__(self) -> None:
        require(self.gamma >= 0, "algorithm.gamma", "must not be negative", self.gamma)

    def init(
        self, params: Mapping[str, Tensor], shared: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> tuple[Tree, Tree]:
        head = {path: leaf for path, leaf in params.items() if in_head(path)}
        own = clone(head) if self.start == "generic" else zeros(head)
        return {}, prefixed("own", own) | prefixed("momentum", zeros(head))

    def loss(self, step: Step) -> Tensor:
        if self.gamma == 0:
            return super().loss(step)
        n = step.counts if self.absent == "removed" else step.counts.clamp(min=1)
        return F.cross_entropy(step.logits + self.gamma * n.log(), step.y)

    def carry(self, grads: Tree, step: Step) -> Tree:
        own = under("own", step.client)
        z = step.features.detach()
        logits = step.logits.detach() + F.linear(z, own["head.weight"], own.get("head.bias"))
        slope = (F.softmax(logits, dim=1) - one_hot(step.y, logits.shape[1], logits.dtype)) / len(step.y)
        found = {"head.weight": slope.T @ z, "head.bias": slope.sum(0)}
        own, momentum = stepped(own, {path: found[path] for path in own}, under("momentum", step.client), step)
        return prefixed("own", own) | prefixed("momentum", momentum)

    def own(self, params: Tree, local: Local) -> Tree:
        own = under("own", local.client)
        return add(own, params)
