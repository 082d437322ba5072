"""FedBN."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedspan.benchmark.component import Component, algorithm


@algorithm("fedbn")
class FedBN(Component):
    """Li et al. 2021 (ICLR), Algorithm 1: BatchNorm layers stay with their clients, the rest is averaged.

    The whole layer stays: weight, bias and running statistics. Other normalisation layers are averaged; on a model
    without BatchNorm this is FedAvg. Averages are weighted by numbers of samples (uniform in the paper). There is no
    single global model: scores are `client_accuracy`; a client that never trained has the initial BatchNorm.

    The authors' setup on Office-Caltech10 differs: images in [0, 1] are not normalised (here by the dataset), SGD has
    no momentum, and the round tested is the one with the best mean accuracy on validation images (here the last round).
    """

    title = "FedBN"
    summary = "BatchNorm layers stay with their clients; the server averages the rest."
    papers = ("li2021fedbn",)

    def shared(self, path: str, module: nn.Module) -> bool:
        return not isinstance(module, _BatchNorm)
