"""FedNova."""

from fedspan.benchmark.component import Aggregate, Component, Local, Upload, algorithm
from fedspan.benchmark.registry import later
from fedspan.benchmark.tree import Tree, scale


def effective_steps(steps: int, momentum: float) -> float:
    """Return the number of plain SGD steps that move as far on a constant gradient as `steps` steps with momentum."""
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


@algorithm("fednova")
class FedNova(Component):
    """Wang et al. 2020 (NeurIPS): average updates per step, so that many steps give a client no extra weight.

    Client i divides its update by ``a_i``, the norm of its accumulation vector (`effective_steps` for SGD with
    momentum); the server multiplies the sample-weighted mean by the participants' mean a_i. Weights are shares of this
    round's participants. There is nothing to tune.

    The code released with FedDecorr 2023 indexes those shares by client number, so it fails or is wrong under partial
    participation. It also treats BatchNorm's running statistics as weights (``statistics``); because the scaled shares
    sum to more than 1, they overshoot the clients' mean. By default they are averaged.
    """

    title = "FedNova"
    summary = "Average updates per local step, so that clients with more steps do not count more."
    papers = ("wang2020",)
    wording = {"statistics": {False: "", True: "BatchNorm statistics as weights"}}

    statistics: bool = later(False)

    @property
    def moves_statistics(self) -> bool:
        return self.statistics

    def client_end(self, delta: Tree, local: Local) -> tuple[Tree, Upload, Tree]:
        a = effective_steps(local.steps, local.protocol.momentum)
        return scale(delta, 1 / a), {"a": local.n * a}, {}

    def server(self, delta: Tree, agg: Aggregate) -> tuple[Tree, Tree]:
        return scale(delta, agg.sums["a"] / agg.samples), {}
