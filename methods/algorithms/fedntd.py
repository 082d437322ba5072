"""FedNTD."""

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from fedspan.benchmark.component import Component, Step, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import log


@algorithm("fedntd")
class FedNTD(Component):
    """Lee et al. 2022 (NeurIPS): distil the global model's predictions for all classes but the true one.

    ``beta`` times the mean over a batch of ``KL(q_global || q_local)``, where q is the softmax of the logits over
    ``tau`` without the logit of the image's own class. The global model is the one that the client received, without
    gradient. beta and tau are 1 in the authors' configuration (their class defaults to a tau of 3). One version of
    their code multiplies the term by tau^2; another, like this one, does not. Here the global model runs in evaluation
    mode; this matters for BatchNorm, which the authors' models lack.
    """

    title = "FedNTD"
    summary = "Distil the global model's view of the classes that an image does not belong to."
    papers = ("lee2022",)

    beta: Annotated[float, log(0.1, 10.0, source="ours, around the authors' 1")] = 1.0
    tau: Annotated[float, log(0.5, 5.0, source="ours, around the authors' 1 and 3")] = 1.0
    neutral = {"beta": 0.0}
    coefficient = "beta"

    def __post_init__(self) -> None:
        require(self.beta >= 0, "algorithm.beta", "must not be negative", self.beta)
        require(self.tau > 0, "algorithm.tau", "must be positive", self.tau)

    def penalty(self, step: Step) -> Tensor:
        mine, theirs = (self._not_true(logits, step.y) for logits in (step.logits, step.apply(step.start)[1]))
        return self.beta * (theirs.exp() * (theirs - mine)).sum(1).mean()

    def _not_true(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the log-softmax [B, classes - 1] over all classes but each image's own."""
        classes = logits.shape[1]
        others = torch.arange(classes - 1, device=y.device)
        others = others + (others >= y[:, None])  # skips the image's own class
        return F.log_softmax(logits.gather(1, others) / self.tau, dim=1)
