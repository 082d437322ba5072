"""FedAvgM."""

from collections.abc import Mapping
from typing import Annotated

from torch import Tensor

from fedspan.benchmark.component import Aggregate, Component, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.registry import later
from fedspan.benchmark.search import choice
from fedspan.benchmark.tree import Tree, add, scale, zeros


@algorithm("fedavgm")
class FedAvgM(Component):
    """Hsu et al. 2019 (arXiv 1909.06335), Sec. 4.2: momentum on the server.

    With the mean update D: ``m = rho m + D`` (plain) or ``m = rho m + (1 - rho) D`` (``damped``), ``w = w + m``.
    Plain steps grow to 1 / (1 - rho) times FedAvg's; damped ones from 1 - rho times FedAvg's to FedAvg's.

    The default is damped, like the code released with FedDecorr 2023, with rho from that paper's App. F (tuned over
    0.1, 0.5, 0.9; its CIFAR10 scripts use 0.9). Hsu et al. use the plain form with rho 0.7, 0.9, 0.97, 0.99 and 0.997,
    and Nesterov's form in the experiments. The released code also applies momentum to BatchNorm's running statistics
    (``statistics``), which can push a variance out of the clients' range; by default they are averaged.
    """

    title = "FedAvgM"
    summary = "FedAvg with momentum on the server."
    papers = ("hsu2019",)
    wording = {
        "damped": {False: "plain momentum", True: "damped momentum"},
        "statistics": {False: "", True: "momentum on BatchNorm statistics"},
    }

    rho: Annotated[float, choice(0.1, 0.5, 0.9, source="FedDecorr 2023, App. F")] = 0.5
    damped: bool = True
    statistics: bool = later(False)
    neutral = {"rho": 0.0}

    def __post_init__(self) -> None:
        require(0 <= self.rho < 1, "algorithm.rho", "must lie in [0, 1)", self.rho)

    def init(
        self, params: Mapping[str, Tensor], shared: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> tuple[Tree, Tree]:
        return zeros({**shared, **buffers} if self.statistics else shared), {}

    @property
    def moves_statistics(self) -> bool:
        return self.statistics

    def server(self, delta: Tree, agg: Aggregate) -> tuple[Tree, Tree]:
        fresh = scale(delta, 1 - self.rho) if self.damped else delta
        m = add(fresh, scale(agg.server, self.rho))
        return m, dict(agg.server) | m
