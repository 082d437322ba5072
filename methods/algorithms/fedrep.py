"""FedRep."""

from typing import Annotated

from torch import nn

from fedspan.benchmark.component import Component, Phases, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.head import in_head
from fedspan.benchmark.registry import later
from fedspan.benchmark.search import fixed


@algorithm("fedrep")
class FedRep(Component):
    """Collins et al. 2021 (ICML), Algorithm 1: first fit the client's own head, then train the shared body.

    A round trains the head for `head_epochs` with the body fixed, then the body for `body_epochs` with the head fixed,
    each with fresh momentum. `body_epochs` 0 means the protocol's `local_epochs`: the body trains as long as in FedAvg.
    The authors' scripts train the head for 10 epochs, then the body for 1 on CIFAR10 with 100 clients and for 5 on
    FEMNIST; Algorithm 1 takes a single step on the body. Public copies of their code also fit all heads once more after
    the last round, and average uniformly on CIFAR; here the last round's heads are scored, and averages are weighted by
    numbers of samples. Heads stay on their clients. There is no single global model: scores are `client_accuracy`; a
    client that never trained has the initial head.
    """

    title = "FedRep"
    summary = "Each client fits its own head, then trains the shared body."
    papers = ("collins2021",)
    wording = {"head_epochs": "{} head epochs", "body_epochs": "{} body epochs"}

    head_epochs: Annotated[int, fixed("it sets the compute of a round")] = 10
    body_epochs: Annotated[int, fixed("it sets the compute of a round")] = later(0)

    def __post_init__(self) -> None:
        require(self.head_epochs >= 1, "algorithm.head_epochs", "must be at least 1", self.head_epochs)
        rule = "must be 0 (protocol.local_epochs) or more"
        require(self.body_epochs >= 0, "algorithm.body_epochs", rule, self.body_epochs)

    def shared(self, path: str, module: nn.Module) -> bool:
        return not in_head(path)

    def phases(self, epochs: int) -> Phases:
        return [(self.head_epochs, in_head), (self.body_epochs or epochs, lambda path: not in_head(path))]
