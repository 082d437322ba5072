"""FedAvg with equal weights."""

import torch
from torch import Tensor

from fedspan.benchmark.component import Component, algorithm


@algorithm("fedavg_uniform")
class FedAvgUniform(Component):
    """McMahan et al. 2017, Algorithm 1, with equal weights: the plain mean of the participants' updates.

    The released code of many later papers averages this way, including BatchNorm's statistics.
    """

    title = "FedAvg (uniform)"
    summary = "Average the participants' updates, each with the same weight."
    papers = ("mcmahan2017",)

    def weights(self, counts: Tensor, samples: int) -> Tensor:
        return torch.ones(len(counts), dtype=counts.dtype)
