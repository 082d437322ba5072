"""FedRS."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from fedspan.benchmark.component import Component, Step, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import linear


@algorithm("fedrs")
class FedRS(Component):
    """Li and Zhan 2021 (KDD): restricted softmax, against the drift of classes that a client does not hold.

    Local training multiplies the logits of the classes missing on the client by alpha (0 to 1; 1 is FedAvg). 0.5 is the
    default of the paper and of the code released with FedDecorr 2023. The two implementations differ: the authors'
    scales the products without bias and also weakens rare classes by their share; FedDecorr's, like this one, scales
    the logits of missing classes, bias included.
    """

    title = "FedRS"
    summary = "A restricted softmax weakens the logits of classes that a client does not hold."
    papers = ("li2021fedrs",)

    alpha: Annotated[float, linear(0.0, 1.0, source="its whole domain")] = 0.5
    neutral = {"alpha": 1.0}

    def __post_init__(self) -> None:
        require(0 <= self.alpha <= 1, "algorithm.alpha", "must lie in [0, 1]", self.alpha)

    def loss(self, step: Step) -> Tensor:
        return F.cross_entropy(torch.where(step.counts > 0, step.logits, self.alpha * step.logits), step.y)
