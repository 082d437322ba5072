"""Centralised training, the usual upper bound."""

from fedspan.benchmark.component import Component, algorithm


@algorithm("centralized")
class Centralized(Component):
    """No federation, the upper bound (as in SphereFed 2022, Sec. 4.1): one client holds the images of all clients.

    Training makes rounds x local epochs passes over the data, regardless of participation. Momentum restarts every
    round and the schedule advances per round, exactly as in FedAvg with one client. Nothing is sent, so bytes are 0.
    """

    title = "Centralized training"
    summary = "One client holds the images of all clients: the usual upper bound, no federation."
    papers = ("dong2022",)

    one_client = True
