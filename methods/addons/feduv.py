"""FedUV."""

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from fedspan.benchmark.component import Component, Step, addon
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import log
from fedspan.benchmark.tree import root


@addon("feduv")
class FedUV(Component):
    """Son et al. 2024 (CVPR): let a client's classifier and features behave as if its data were IID.

    - variance: ``lam`` times the mean over classes of ``max(0, 1 / sqrt(C) - s_c)``, where s_c is the unbiased standard
      deviation of the probability of class c over the batch, and 1 / sqrt(C) that of one-hot labels of all C classes;
    - hyperspherical uniformity: ``mu`` times the mean over pairs of images of ``exp(-||z_i - z_j||^2 / sigma)`` with
      features z and sigma the median of the nonzero squared distances.

    Both terms and the defaults, lam 2.5 and mu 0.5, follow the authors' code, which does not scale the features to unit
    length and differentiates through the median. In the models of that code, under every method, two more layers with
    BatchNorm lie before the classifier, and z is their output; here z is the body's. A batch of one image contributes
    0.
    """

    title = "FedUV"
    summary = "Varied class probabilities and evenly spread features, as if the client's data were IID."
    papers = ("son2024",)

    lam: Annotated[float, log(0.25, 25.0, source="ours, around the authors' 2.5")] = 2.5
    mu: Annotated[float, log(0.05, 5.0, source="ours, around the authors' 0.5")] = 0.5
    neutral = {"lam": 0.0, "mu": 0.0}
    version = 2  # in 1 a class of nearly constant probability made the gradient NaN

    def __post_init__(self) -> None:
        require(self.lam >= 0, "addon.feduv.lam", "must not be negative", self.lam)
        require(self.mu >= 0, "addon.feduv.mu", "must not be negative", self.mu)

    def penalty(self, step: Step) -> Tensor:
        if len(step.features) < 2:
            return 0.0 * step.features.sum()
        return self.lam * lack_of_variance(step.logits) + self.mu * lack_of_uniformity(step.features)


def lack_of_variance(logits: Tensor) -> Tensor:
    """Return the mean over classes of ``max(0, 1 / sqrt(C) - s_c)`` for a batch of logits [n, C], a scalar."""
    variance = F.softmax(logits, dim=1).var(0)
    same = variance == 0  # the slope of the square root is infinite there
    deviation = root(variance.masked_fill(same, 1.0)).masked_fill(same, 0.0)
    return F.relu(1 / math.sqrt(logits.shape[1]) - deviation).mean()


def lack_of_uniformity(features: Tensor) -> Tensor:
    """Return the mean Gaussian potential of all pairs of features [n, d], a scalar in (0, 1]."""
    first, second = torch.triu_indices(len(features), len(features), 1, device=features.device)
    squared = (features[first] - features[second]).square().sum(1)
    median = squared.masked_fill(squared == 0, math.nan).nanmedian()
    return (squared / -median.masked_fill(median.isnan(), 1.0)).exp().mean()
