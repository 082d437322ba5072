"""Local training only, the baseline without federation."""

from torch import nn

from fedspan.benchmark.component import Component, algorithm


@algorithm("local_only")
class LocalOnly(Component):
    """No federation, the baseline that Liang et al. 2020, Sec. 4, call local training: nothing is sent.

    All clients start from the same model and train in the rounds that sample them, for as long as in FedAvg. There is
    no global model: scores are `client_accuracy`.
    """

    title = "Local training"
    summary = "Each client trains alone, without communication: the baseline without federation."
    papers = ("liang2020",)

    def shared(self, path: str, module: nn.Module) -> bool:
        return False
