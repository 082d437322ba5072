"""FedAdam."""

from torch import Tensor

from benchmark.component import algorithm
from benchmark.errors import require
from methods.adaptive import Adaptive


@algorithm("fedadam")
class FedAdam(Adaptive):
    """Reddi et al. 2021 (ICLR), Algorithm 2: Adam on the server, ``v = beta2 v + (1 - beta2) D^2``.

    beta1 0.9 and beta2 0.99 are the paper's; it tunes lr over powers of ten (10^-3 to 10) and tau over 10^-5 to
    10^-1, and recommends tau 10^-3. The rest, and what released code does otherwise, is in `methods.adaptive`.
    """

    beta2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.beta2 < 1, "algorithm.beta2", "must lie in [0, 1)", self.beta2)

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * squared
