"""Local training only, the lower bound."""

from torch import nn

from fedspan.benchmark.component import Component, algorithm


@algorithm("local_only")
class LocalOnly(Component):
    """No federation, the lower bound (as in Liang et al. 2020, Sec. 4): every client trains alone, nothing travels.

    All clients start from the same model and train in the rounds that sample them, for as long as in FedAvg. There is
    no global model: scores are `client_accuracy`.
    """

    title = "Local training"
    summary = "Every client trains alone and nothing travels: the lower bound, no federation."
    papers = ("liang2020",)

    def shared(self, path: str, module: nn.Module) -> bool:
        return False
