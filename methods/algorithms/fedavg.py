"""FedAvg."""

from fedspan.benchmark.component import Component, algorithm


@algorithm("fedavg")
class FedAvg(Component):
    """McMahan et al. 2017, Algorithm 1: average the clients' updates by their numbers of samples."""

    title = "FedAvg"
    summary = "Clients train locally; the server averages their updates by numbers of samples."
    papers = ("mcmahan2017",)
