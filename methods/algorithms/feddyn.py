"""FedDyn."""

from typing import Annotated, Literal

from torch import Tensor

from fedspan.benchmark.component import Step, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.registry import later
from fedspan.benchmark.search import choice
from fedspan.benchmark.tree import sqdist
from fedspan.methods.drift import DriftCorrection


@algorithm("feddyn")
class FedDyn(DriftCorrection):
    """Acar et al. 2021 (ICLR): a regulariser per client, so that local optima agree with the global one.

    Client i minimises ``L_i(v) - <g_i, v> + alpha/2 ||v - w||^2`` and sets ``g_i = g_i - alpha (w_i - w)``. With the
    drift ``h_i = -g_i / alpha``, the sum of its updates, this is ``L_i(v) + alpha/2 ||v - w + h_i||^2`` up to a
    constant, and the server's step is ``w = mean w_i + mean h_i`` (`fedspan.methods.drift`), as in the authors' code.
    Both means weigh all clients equally. The paper tunes alpha over 0.1, 0.01 and 0.001.

    With ``share=divides``, as in the authors' code, alpha is divided by the client's number of images relative to the
    mean client's, so that every image of a client weighs the same against the regulariser; clients of equal size train
    as in the paper. That code also clips gradients at norm 10, and has no momentum. Here the regulariser is part of the
    objective, so it goes through the protocol's momentum. BatchNorm's running statistics are averaged like models; the
    authors' models have none.
    """

    title = "FedDyn"
    summary = "A linear and a quadratic term per client make local optima agree with the global one."
    papers = ("acar2021",)
    wording = {"share": {"ignored": "", "divides": "alpha by share of images"}}

    alpha: Annotated[float, choice(0.1, 0.01, 0.001, source="Acar et al. 2021")] = 0.01
    share: Literal["ignored", "divides"] = later("ignored")
    coefficient = "alpha"

    def __post_init__(self) -> None:
        require(self.alpha > 0, "algorithm.alpha", "must be positive", self.alpha)

    def penalty(self, step: Step) -> Tensor:
        alpha: float | Tensor = self.alpha
        if self.share == "divides":
            alpha = alpha * step.mean_images / step.counts.sum()
        return alpha / 2 * sqdist(self.anchor(step), step.params)
