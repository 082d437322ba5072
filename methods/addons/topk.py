"""Top-k sparsification."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from fedspan.benchmark.component import Component, Local, Wire, addon
from fedspan.benchmark.errors import Incompatible, require
from fedspan.benchmark.search import fixed
from fedspan.benchmark.tree import Tree, add, sub, zeros

INDEX_BITS = 32


@addon("topk")
class TopK(Component):
    """Stich et al. 2018 (NeurIPS), Algorithm 1, applied to updates: clients send only the largest entries.

    Of the D numbers of an update, a client sends the ``ceil(share D)`` of largest magnitude, each with a position of 32
    bits. With `memory` a client adds what it did not send to its next update (Eq. 4). Then list `topk` before add-ons
    that round, because the sum needs more digits. Memory excludes FedAMP and FedALA, whose clients keep their weights,
    so that their next update has the unsent part anyway. BatchNorm's statistics are sent in full. The paper compresses
    every gradient; here, as in federated learning since Sattler et al. 2019, it is a round's update.
    """

    title = "Top-k"
    summary = "Clients send the largest entries of their updates and add the rest to the next ones."
    papers = ("stich2018",)
    wording = {"memory": {False: "without memory"}}

    share: Annotated[float, fixed("it sets the traffic")] = 0.1
    memory: bool = True
    neutral = {"share": 1.0}

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, "addon.topk.share", "must lie in (0, 1]", self.share)

    @property
    def excludes(self) -> Mapping[str, str]:  # type: ignore[override]
        kept = "its clients keep their weights, so their next update has the unsent part anyway"
        return dict.fromkeys(("fedamp", "fedala"), kept) if self.memory and self.share < 1 else {}

    @property
    def idle(self) -> frozenset[str]:
        return frozenset({"wire"} if self.share == 1 else ())

    def init(
        self, params: Mapping[str, Tensor], shared: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> tuple[Tree, Tree]:
        return {}, zeros(params) if self.memory and self.share < 1 else {}

    def client_end(self, delta: Tree, local: Local) -> tuple[Tree, Tree, Tree]:
        if self.share == 1:
            return delta, {}, {}
        update = {path: leaf for path, leaf in delta.items() if path in local.start}
        if self.memory:
            update = add(update, local.client)
        sent = largest(update, self.kept(update))
        rest = dict(local.client) | sub(update, sent) if self.memory else {}
        return delta | sent, {}, rest

    def wire(self, size: Wire, delta: Tree, local: Local) -> Wire:
        update = {path: leaf for path, leaf in delta.items() if path in local.start}
        whole = 8 * next(iter(update.values())).element_size()
        if self.memory and size.bits < whole:
            raise Incompatible(
                f"'topk' with memory adds what it kept back to an update already written in {size.bits:g} bits a "
                "number, which do not hold the sum; put 'topk' before what rounds, or set addon.topk.memory=false"
            )
        kept = self.kept(update)
        dropped = sum(leaf.numel() for leaf in update.values()) - kept
        return replace(size, numbers=size.numbers - dropped, extra=size.extra + kept * INDEX_BITS)

    def kept(self, update: Mapping[str, Tensor]) -> int:
        """Return how many numbers of an update are sent, at least one."""
        return max(1, math.ceil(self.share * sum(leaf.numel() for leaf in update.values()) - 1e-9))


def largest(tree: Mapping[str, Tensor], count: int) -> Tree:
    """Return the tree with all but its `count` entries of largest magnitude set to zero."""
    every = torch.cat([leaf.flatten() for leaf in tree.values()])
    chosen = torch.zeros_like(every)
    where = every.abs().topk(count).indices
    chosen = chosen.scatter(0, where, every.gather(0, where))
    parts = chosen.split([leaf.numel() for leaf in tree.values()])
    return {path: part.view(leaf.shape) for (path, leaf), part in zip(tree.items(), parts, strict=True)}
