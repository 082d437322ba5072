"""FedOpt with SGD on the server."""

from collections.abc import Mapping
from typing import Annotated

from torch import Tensor

from fedspan.benchmark.component import Aggregate, Component, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import linear, log
from fedspan.benchmark.tree import Tree, add, scale, zeros


@algorithm("fedopt")
class FedOpt(Component):
    """Reddi et al. 2021 (ICLR), Algorithm 1 with SGD and momentum on the server, as SphereFed 2022 uses it.

    The mean update D is the negative gradient: ``m = momentum m + D``, ``w = w + lr m``. Defaults are from SphereFed,
    Table 16 (server optimiser SGD, learning rate 1.0, momentum 0.3).
    """

    title = "FedOpt (SGD)"
    summary = "SGD with momentum on the server, with the mean update of the clients as its gradient."
    papers = ("reddi2021", "dong2022")
    wording = {"lr": "server lr {:g}"}

    lr: Annotated[float, log(0.1, 3.0, source="ours, around SphereFed's 1")] = 1.0
    momentum: Annotated[float, linear(0.0, 0.9, source="ours, around SphereFed's 0.3")] = 0.3
    neutral = {"lr": 1.0, "momentum": 0.0}

    def __post_init__(self) -> None:
        require(self.lr > 0, "algorithm.lr", "must be positive", self.lr)
        require(0 <= self.momentum < 1, "algorithm.momentum", "must lie in [0, 1)", self.momentum)

    def init(
        self, params: Mapping[str, Tensor], shared: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> tuple[Tree, Tree]:
        return zeros(shared), {}

    def server(self, delta: Tree, agg: Aggregate) -> tuple[Tree, Tree]:
        m = add(delta, scale(agg.server, self.momentum))
        return scale(m, self.lr), m
