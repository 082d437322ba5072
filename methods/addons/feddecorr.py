"""FedDecorr."""

from typing import Literal

from torch import Tensor

from benchmark.component import Component, Step, addon
from benchmark.errors import require


@addon("feddecorr")
class FedDecorr(Component):
    """Shi et al. 2023 (ICLR): penalise correlation between the dimensions of a batch of representations.

    With K the d x d sample correlation matrix of N representations, standardised with the unbiased variance:

    - ``form=paper`` (Eq. 8): ``beta * ||K||_F^2 / d^2``;
    - ``form=released`` (the authors' code, which made the printed tables): the off-diagonal entries of
      ``(N - 1) K``, squared, averaged over d(d - 1) and divided by N, times beta.

    The released gradient is ``(N - 1)^2 / N * d / (d - 1)`` times the paper's, about 62 times at batch 64.
    beta defaults to 0.1 (tuned over 0.01, 0.05, 0.1, 0.2, 0.3). A batch of one image gives 0, and so does a
    constant dimension.
    """

    form: Literal["released", "paper"] = "released"
    beta: float = 0.1
    neutral = {"beta": 0.0}

    def __post_init__(self) -> None:
        require(self.beta >= 0, "addon.feddecorr.beta", "must not be negative", self.beta)

    def penalty(self, step: Step) -> Tensor:
        z = step.features
        n, d = z.shape
        if n < 2 or d < 2:
            return 0.0 * z.sum()
        centred = z - z.mean(0)
        variance = centred.square().sum(0) / (n - 1)
        z = centred / (variance + 1e-8).sqrt()
        # ||Z'Z||_F = ||ZZ'||_F: the smaller of the two products is enough.
        squared = (z @ z.T if n < d else z.T @ z).square().sum()
        if self.form == "paper":
            return self.beta * squared / ((n - 1) ** 2 * d**2)
        diagonal = z.square().sum(0).square().sum()
        return self.beta * (squared - diagonal) / (d * (d - 1) * n)
