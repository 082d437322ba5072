"""FedDisco."""

from typing import Annotated, Literal

import torch
from torch import Tensor

from fedspan.benchmark.component import Component, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import linear
from fedspan.benchmark.tree import root

Metric = Literal["kl", "l1", "l2", "cosine"]


@algorithm("feddisco")
class FedDisco(Component):
    """Ye et al. 2023 (ICML), Eq. 5: clients with unbalanced classes weigh less in the mean.

    A participant's weight is ``max(0, share - a d + b)``, normalised over participants: `share` is its fraction of
    their images, d the distance (`metric`) of its class shares from uniform. As in the authors' code, Kullback-Leibler
    divergences are divided by their sum over participants, so they compare clients and do not depend on the number of
    classes. BatchNorm's statistics are averaged with the same weights. a and b default to that code's 0.5 and 0.1.

    The authors' code fails if no weight is positive; here the cell ends with an error that says so.
    """

    title = "FedDisco"
    summary = "Weight clients by their number of images and the balance of their classes."
    papers = ("ye2023",)
    server_sees = "each client's number of images per class"

    a: Annotated[float, linear(0.0, 1.0, source="ours, around the authors' 0.5")] = 0.5
    b: Annotated[float, linear(0.0, 0.5, source="ours, around the authors' 0.1")] = 0.1
    metric: Metric = "kl"
    neutral = {"a": 0.0, "b": 0.0}

    def __post_init__(self) -> None:
        require(self.a >= 0, "algorithm.a", "must not be negative", self.a)

    @property
    def idle(self) -> frozenset[str]:
        return frozenset({"weights"} if self.a == self.b == 0 else ())

    def weights(self, counts: Tensor, samples: int) -> Tensor:
        n = counts.sum(1)
        return (n / n.sum() - self.a * discrepancy(counts / n[:, None], self.metric) + self.b).relu()


def discrepancy(shares: Tensor, metric: Metric) -> Tensor:
    """Return the distances [m] from uniform of the class shares [m, classes] of m clients."""
    uniform = 1 / shares.shape[1]
    if metric == "kl":
        each = torch.special.xlogy(shares, shares / uniform).sum(1)
        return each / each.sum().clamp(min=torch.finfo(each.dtype).tiny)
    if metric == "l1":
        return (shares - uniform).abs().sum(1)
    if metric == "l2":
        return root((shares - uniform).square().sum(1).clamp(min=torch.finfo(shares.dtype).tiny))
    return 1 - shares.sum(1) * uniform / root(shares.square().sum(1) * uniform)
