"""FedDC."""

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from torch import Tensor

from fedspan.benchmark.component import Aggregate, Local, Step, Upload, algorithm
from fedspan.benchmark.registry import later
from fedspan.benchmark.search import choice
from fedspan.benchmark.tree import Tree, add, prefixed, scale, sub, tree_map, under, zeros
from fedspan.methods.algorithms.feddyn import FedDyn

VARIATE = "c"


@algorithm("feddc")
class FedDC(FedDyn):
    """Gao et al. 2022 (CVPR): FedDyn's drift h_i in the local objective, and SCAFFOLD's correction.

    Client i minimises ``L_i(v) + alpha/2 ||v + h_i - w||^2 + <v, c - c_i>``. After K steps at rate eta it adds its
    update to the drift h_i and sets ``c_i = c_i - c + (w - w_i) / (K eta)``; the server adds the mean change over all
    clients to c and sets ``w = mean w_i + mean h_i`` (`fedspan.methods.drift`). alpha is 0.01 in the authors' script
    for CIFAR10 and CIFAR100, 0.1 for MNIST and 0.005 for synthetic data.

    The variates are kept between rounds, as in SCAFFOLD and in the authors' code; the paper's text uses only the last
    update. That code divides alpha and c by the client's share of the images and multiplies the sent change of c_i by
    that share (``share=divides``), takes K and eta of the mean client in the first round (``steps=mean``; K counts a
    short last batch even if ``protocol.last_batch`` drops it), and clips gradients at norm 10. As in SCAFFOLD here, the
    correction is a separate step outside the protocol's momentum; the paper's SGD has none. Two trees are sent in each
    direction.
    """

    title = "FedDC"
    summary = "Each client's drift enters its objective and the average; gradients are corrected as in SCAFFOLD."
    papers = ("gao2022",)
    wording = {"share": FedDyn.wording["share"], "steps": {"own": "", "mean": "mean client's steps"}}

    alpha: Annotated[float, choice(0.1, 0.01, 0.005, source="Gao et al. 2022, the authors' scripts")] = 0.01
    steps: Literal["own", "mean"] = later("own")

    def init(
        self, params: Mapping[str, Tensor], shared: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> tuple[Tree, Tree]:
        server, client = super().init(params, shared, buffers)
        return server | prefixed(VARIATE, zeros(shared)), client | prefixed(VARIATE, zeros(shared))

    def broadcast(self, server: Mapping[str, Tensor]) -> Tree:
        return under(VARIATE, server)

    def shift(self, step: Step) -> Tree:
        c = step.server
        if self.share == "divides":
            c = scale(c, step.mean_images / step.counts.sum())
        return scale(sub(under(VARIATE, step.client), c), step.lr)

    def client_end(self, delta: Tree, local: Local) -> tuple[Tree, Upload, Tree]:
        share = local.n / local.mean_images if self.share == "divides" else 1
        way = self._way(local)
        change = tree_map(lambda c, d: -c / share - d / way, local.server, delta)
        variate = add(under(VARIATE, local.client), change)
        delta, _, client = super().client_end(delta, local)
        return delta, scale(change, share), client | prefixed(VARIATE, variate)

    def _way(self, local: Local) -> float:
        """Return K eta: the client's steps at this round's rate, or the mean client's at the first round's."""
        protocol = local.protocol
        if self.steps == "own":
            return local.steps * protocol.lr_at(local.round)
        batches = math.ceil(local.mean_images / protocol.batch_size)
        return protocol.local_epochs * batches * protocol.lr_at(0)

    def server(self, delta: Tree, agg: Aggregate) -> tuple[Tree, Tree]:
        delta, server = super().server(delta, agg)
        return delta, server | prefixed(VARIATE, add(under(VARIATE, agg.server), scale(agg.sums, 1 / agg.clients)))
