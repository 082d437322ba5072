"""SCAFFOLD."""

from collections.abc import Mapping
from typing import Annotated

from torch import Tensor

from fedspan.benchmark.component import Aggregate, Component, Local, Step, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import fixed
from fedspan.benchmark.tree import Tree, add, scale, sub, tree_map, zeros


@algorithm("scaffold")
class Scaffold(Component):
    """Karimireddy et al. 2020 (ICML), Algorithm 1, option II: control variates against client drift.

    Each local step at rate eta is ``y = y - eta (g + c - c_i)``. After K steps, from x to y, the client sets
    ``c_i = c_i - c + (x - y) / (K eta)``, and the server adds the mean change over all clients to c, so c stays the
    mean of all c_i. Then ``x = x + lr D``, with the mean update D weighted by numbers of samples (uniform in the
    paper). c is the clients' uniform mean, so with clients of different sizes SCAFFOLD converges to the minimum of the
    mean of their losses, where FedAvg weighs them by their samples. lr is 1 in the paper's experiments; there is
    nothing else to tune.

    The paper's SGD has no momentum; FedDecorr 2023, App. C.4, ran SCAFFOLD with its usual 0.9 and released no code.
    Here momentum applies to g only and the correction is a separate step, as in the public code of NIID-Bench (Li et
    al. 2022). Momentum enlarges (x - y) / (K eta), and with it c_i, by up to 1 / (1 - momentum); a correction passed
    through the momentum would grow again and diverge from round to round above momentum 1/2. With few steps momentum
    has not built up and enlarges c_i less, so under strong label skew the corrections do not match and a run can lose
    tens of points (docs/methods.md). Momentum 0 is the paper's method.
    """

    title = "SCAFFOLD"
    summary = "Control variates correct client drift."
    papers = ("karimireddy2020",)
    wording = {"lr": "server lr {:g}"}

    lr: Annotated[float, fixed("1 in the paper's experiments")] = 1.0

    def __post_init__(self) -> None:
        require(self.lr > 0, "algorithm.lr", "must be positive", self.lr)

    def init(
        self, params: Mapping[str, Tensor], shared: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> tuple[Tree, Tree]:
        return zeros(shared), zeros(shared)

    def broadcast(self, server: Mapping[str, Tensor]) -> Tree:
        return dict(server)

    def shift(self, step: Step) -> Tree:
        return scale(sub(step.client, step.server), step.lr)

    def client_end(self, delta: Tree, local: Local) -> tuple[Tree, Tree, Tree]:
        way = local.steps * local.protocol.lr_at(local.round)
        change = tree_map(lambda c, d: -c - d / way, local.server, delta)
        return delta, change, add(local.client, change)

    def server(self, delta: Tree, agg: Aggregate) -> tuple[Tree, Tree]:
        return scale(delta, self.lr), add(agg.server, scale(agg.sums, 1 / agg.clients))
