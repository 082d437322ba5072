"""FedPer."""

from torch import nn

from fedspan.benchmark.component import Component, algorithm
from fedspan.benchmark.head import in_head


@algorithm("fedper")
class FedPer(Component):
    """Arivazhagan et al. 2019 (arXiv 1912.00818), Algorithm 1: the head stays with its client, the body is averaged.

    Body and head train together, unlike in FedRep. The paper keeps one to four blocks at the top of the model with the
    client; here only the classifier stays. All clients start from the same head. There is no single global model:
    scores are `client_accuracy`; a client that never trained has the initial head. There is nothing to tune.
    """

    title = "FedPer"
    summary = "Each client keeps its own head; the body is averaged."
    papers = ("arivazhagan2019",)

    def shared(self, path: str, module: nn.Module) -> bool:
        return not in_head(path)
