"""FedExP."""

from typing import Annotated

import torch

from fedspan.benchmark.component import Aggregate, Component, Local, Upload, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import log
from fedspan.benchmark.tree import Tree, scale, sqnorm


@algorithm("fedexp")
class FedExp(Component):
    """Jhunjhunwala et al. 2023 (ICLR), Algorithm 1: extrapolate more, the more the clients' updates disagree.

    ``w = w + eta D`` with ``eta = max(1, mean ||D_i||^2 / (2 (||D||^2 + epsilon)))``; norms cover weights only; both
    means are weighted by numbers of samples as in the authors' code. Its epsilon is 10^-3 for CIFAR10 and CIFAR100 and
    0.1 for EMNIST.

    That code also multiplies epsilon by the number of participants and decays it by 0.998^2 per round; here it is
    constant, as in the paper. Both score the mean of the last two models; here the last one is scored. In the code
    released with FedDecorr 2023 step counters enter the norms, so its eta stays 1. With an add-on that compresses, D_i
    is the update that client i computed and D the mean of those that arrived: eta grows with what compression loses.
    """

    title = "FedExP"
    summary = "The server extrapolates the mean update, further when clients disagree more."
    papers = ("jhunjhunwala2023",)

    epsilon: Annotated[float, log(1e-4, 1.0, source="ours, around the authors' 1e-3 and 0.1")] = 1e-3

    def __post_init__(self) -> None:
        require(self.epsilon >= 0, "algorithm.epsilon", "must not be negative", self.epsilon)

    def client_end(self, delta: Tree, local: Local) -> tuple[Tree, Upload, Tree]:
        return delta, {"sqnorm": local.n * sqnorm(delta)}, {}

    def server(self, delta: Tree, agg: Aggregate) -> tuple[Tree, Tree]:
        eta = agg.sums["sqnorm"] / agg.samples / (2 * (sqnorm(delta) + self.epsilon))
        return scale(delta, torch.clamp(eta, min=1.0)), {}
