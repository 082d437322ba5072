"""LG-FedAvg."""

from typing import Annotated

from torch import nn

from fedspan.benchmark.component import Component, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.head import in_head
from fedspan.benchmark.registry import later
from fedspan.benchmark.search import choice


@algorithm("lg_fedavg")
class LGFedAvg(Component):
    """Liang et al. 2020 (arXiv 2001.01523), Algorithm 1: the body stays with its client, the head is averaged.

    The body includes its BatchNorm statistics; body and head train together. The authors share the last two or three
    layers; here only the last one is shared.

    `warm_up` is the share of the rounds, from the first on, that run as FedAvg before bodies become local. Algorithm 1
    has none, hence the default 0: all clients start from the same initial model. The authors' code always starts from a
    FedAvg model: 400 rounds before 100 on MNIST, 1200 before 200 on CIFAR10 (`warm_up` 0.8 and 0.857). It also averages
    without weights and keeps the model of each client that is best on its test images; here the last round is scored.
    There is no single global model: scores are `client_accuracy`; a client that never trained its own body has the
    global one.
    """

    title = "LG-FedAvg"
    summary = "Each client keeps its own body; the server averages the head."
    papers = ("liang2020",)
    wording = {"warm_up": "{:.0%} warm-up as FedAvg"}

    warm_up: Annotated[float, choice(0.0, 0.8, 0.857, source="Algorithm 1, and the authors' scripts")] = later(0.0)

    def __post_init__(self) -> None:
        require(0 <= self.warm_up < 1, "algorithm.warm_up", "must lie in [0, 1)", self.warm_up)

    def shared(self, path: str, module: nn.Module) -> bool:
        return in_head(path)
