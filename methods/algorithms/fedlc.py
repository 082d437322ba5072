"""FedLC."""

import math
from typing import Annotated

import torch.nn.functional as F
from torch import Tensor

from fedspan.benchmark.component import Component, Step, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import log


@algorithm("fedlc")
class FedLC(Component):
    """Zhang et al. 2022 (ICML): logit calibration, larger margins for the client's rarer classes.

    Local training minimises the cross-entropy of the logits minus ``tau n_c^(-1/4)``, where n_c counts the client's
    images of class c. A class without images has an infinite margin and leaves the softmax at every tau > 0. With tau 0
    there are no margins: FedAvg. tau defaults to 1; the code released with FedDecorr 2023 has 0.1. The paper's
    denominator omits the true class; released code keeps it, as cross-entropy does, and so does this one.
    """

    title = "FedLC"
    summary = "Calibrated logits: larger margins for the rarer classes of a client."
    papers = ("zhang2022",)

    tau: Annotated[float, log(0.05, 2.0, source="ours, around the paper's 1 and the released 0.1")] = 1.0
    neutral = {"tau": 0.0}
    version = 2  # 1 subtracted 100 tau from the logit of a class without images, too little at a small tau

    def __post_init__(self) -> None:
        require(self.tau >= 0, "algorithm.tau", "must not be negative", self.tau)

    def loss(self, step: Step) -> Tensor:
        if self.tau == 0:
            return super().loss(step)
        margins = self.tau * step.counts.clamp(min=1) ** -0.25
        return F.cross_entropy(step.logits - margins.masked_fill(step.counts == 0, math.inf), step.y)
