"""FedAdam."""

from typing import Annotated

from torch import Tensor

from fedspan.benchmark.component import algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import fixed
from fedspan.methods.adaptive import Adaptive


@algorithm("fedadam")
class FedAdam(Adaptive):
    """Reddi et al. 2021 (ICLR), Algorithm 2: Adam on the server, ``v = beta2 v + (1 - beta2) D^2``.

    beta1 0.9 and beta2 0.99 are the paper's, tau 10^-3 that of later comparisons. The paper tunes lr and tau for every
    task; so should you. The code of FedExP 2023 runs it with lr 0.1 on CIFAR10 and CIFAR100, with ``m^2`` in place of
    ``D^2`` and ``sqrt(v + 0.0001)`` in place of ``sqrt(v) + tau``. See `fedspan.methods.adaptive` for the rest and for
    how released code differs.
    """

    title = "FedAdam"
    summary = "Adam on the server, with the mean update of the clients as its gradient."
    papers = ("reddi2021",)

    beta2: Annotated[float, fixed("the paper's")] = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.beta2 < 1, "algorithm.beta2", "must lie in [0, 1)", self.beta2)

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * squared
