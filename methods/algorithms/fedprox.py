"""FedProx."""

from typing import Annotated

from torch import Tensor

from fedspan.benchmark.component import Component, Step, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import choice
from fedspan.benchmark.tree import sqdist


@algorithm("fedprox")
class FedProx(Component):
    """Li et al. 2020 (MLSys): keep local weights near the global ones by mu/2 ||w - w_global||^2.

    The default mu is that of FedDecorr 2023, App. F (tuned over 1e-4, 1e-3, 1e-2, 1e-1). The code released
    with that paper compares the local weights with themselves, so its term is zero; this one works.
    """

    title = "FedProx"
    summary = "A proximal term keeps local weights near the global ones."
    papers = ("li2020",)

    mu: Annotated[float, choice(1e-4, 1e-3, 1e-2, 1e-1, source="FedDecorr 2023, App. F")] = 1e-3
    neutral = {"mu": 0.0}
    coefficient = "mu"

    def __post_init__(self) -> None:
        require(self.mu >= 0, "algorithm.mu", "must not be negative", self.mu)

    def penalty(self, step: Step) -> Tensor:
        return self.mu / 2 * sqdist(step.params, step.start)
