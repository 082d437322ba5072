"""DeCov."""

from typing import Annotated

from torch import Tensor

from fedspan.benchmark.component import Component, Step, addon
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import log


@addon("decov")
class DeCov(Component):
    """Cogswell et al. 2016 (ICLR), Eq. 2: beta/2 (||C||_F^2 - ||diag C||^2), C the covariance of a batch of features.

    C is normalised by the number of images, as in the paper. FedDecorr 2023, Table 6, reports the method without naming
    beta.
    """

    title = "DeCov"
    summary = "Penalise covariances between the features of a batch."
    papers = ("cogswell2016",)

    beta: Annotated[float, log(1e-6, 0.1, source="ours; no source names a beta")] = 0.1
    neutral = {"beta": 0.0}
    coefficient = "beta"

    def __post_init__(self) -> None:
        require(self.beta >= 0, f"addon.{self.name}.beta", "must not be negative", self.beta)

    def penalty(self, step: Step) -> Tensor:
        z = step.features - step.features.mean(0)
        return self.beta / 2 * (squared_covariances(z) - self.allowed(z))

    def allowed(self, z: Tensor) -> Tensor:
        """Return the sum of the squared covariances of centred z [n, d] that are exempt from the penalty."""
        return z.square().mean(0).square().sum()


def squared_covariances(z: Tensor) -> Tensor:
    """Return the squared Frobenius norm of the covariance of centred z [n, d]."""
    # ||Z'Z||_F = ||ZZ'||_F, so use the smaller of the two products.
    n, d = z.shape
    return (z @ z.T if n < d else z.T @ z).square().sum() / n**2
