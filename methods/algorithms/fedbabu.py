"""FedBABU."""

from fedspan.benchmark.component import Component, algorithm
from fedspan.benchmark.head import in_head


@algorithm("fedbabu")
class FedBABU(Component):
    """Oh et al. 2022 (ICLR), Algorithm 1: train and average the body only, under a head fixed at its initial values.

    The fixed head is part of the global model but never sent. The paper then fine-tunes the model on each client; for
    that, use an add-on with the stage `personalised`. There is nothing to tune.
    """

    title = "FedBABU"
    summary = "Clients train and share the body only, under a head fixed at its initial values."
    papers = ("oh2022",)

    def trainable(self, path: str) -> bool:
        return not in_head(path)
