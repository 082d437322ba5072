"""FedYogi."""

from typing import Annotated

from torch import Tensor

from fedspan.benchmark.component import algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import fixed
from fedspan.methods.adaptive import Adaptive


@algorithm("fedyogi")
class FedYogi(Adaptive):
    """Reddi et al. 2021 (ICLR), Algorithm 2: Yogi on the server, ``v = v - (1 - beta2) D^2 sign(v - D^2)``.

    Defaults and tuning as for FedAdam. v changes by (1 - beta2) D^2 whatever its size, so large bursts are not
    forgotten faster. See `fedspan.methods.adaptive` for the rest and for how released code differs.
    """

    title = "FedYogi"
    summary = "Yogi on the server, with the mean update of the clients as its gradient."
    papers = ("reddi2021",)

    beta2: Annotated[float, fixed("the paper's")] = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.beta2 < 1, "algorithm.beta2", "must lie in [0, 1)", self.beta2)

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        return v - (1 - self.beta2) * squared * (v - squared).sign()
