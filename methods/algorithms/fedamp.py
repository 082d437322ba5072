"""FedAMP."""

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedspan.benchmark.component import Component, Local, Setting, Step, algorithm
from fedspan.benchmark.download import Download
from fedspan.benchmark.errors import Incompatible, require
from fedspan.benchmark.registry import later
from fedspan.benchmark.search import choice, fixed, log
from fedspan.benchmark.tree import Tree, prefixed, sqdist, under


@algorithm("fedamp")
class FedAMP(Component):
    """Huang et al. 2021 (AAAI), Algorithm 1: the server mixes a model for each client from those of similar clients.

    Client i keeps its model w_i between rounds and trains it on its loss plus ``lam/(2 alpha) ||w - u_i||^2``. Its
    cloud model is ``u_i = sum_j xi_ij w_j``, over the models that all clients sent last, where ``xi_ii`` is 1 minus the
    other weights. `attention` sets the other weights:

    - ``cosine``, the authors' form for deep networks (HeurFedAMP): ``xi_ii`` is `self_weight`, and the others share the
      rest by a softmax of ``sigma cos(w_i, w_j)``.
    - ``distance``: ``xi_ij = alpha A'(||w_i - w_j||^2)``, with ``A(x) = 1 - exp(-x / sigma)``.

    SGD starts at w_i, the client's `own` model, or at u_i, the `cloud` model: public implementations do either. Two of
    them state the paper's strength as lam 1 and alpha 10^4, divided by 10 every 30 rounds: u_i then hardly pulls, and
    the starting point decides what a client learns from others. A third, RigFL, describes a notebook of the authors,
    which was not at hand: the same falling alpha, a `self_weight` of 0.5, a sigma of 10, SGD from the cloud model. With
    `cosine` only the ratio of lam to alpha matters.

    The stage ``personalised`` scores w_i; ``trained`` scores the sample-weighted mean of the w_i that arrived in the
    last round, which no client uses. BatchNorm's statistics are averaged in every round, and w_i keeps those of its
    last training. PFLlib has only `distance`, and mixes the last round's participants; its term, the unsquared distance
    to u_i, is computed from detached weights and so has no gradient. There the others' weights can sum to more than 1;
    here settings that allow this are refused. Bytes down include the global model, as for every method; the algorithm
    sends a client only its cloud model, half of those bytes. As no client starts from the global model, FFC's
    calibrations between rounds (`every`) change only the rounds' scores, unless the head is fixed: clients then train
    under the calibrated one.
    """

    title = "FedAMP"
    summary = "The server mixes each client's model from those of similar clients, and the client stays near it."
    papers = ("huang2021",)
    wording = {"start": {"own": "from the client's model", "cloud": "from the cloud model"}}

    attention: Literal["cosine", "distance"] = "cosine"
    lam: Annotated[float, log(1e-4, 10.0, source="ours, from public copies' 1e-4 to ten times PFLlib's 1")] = 1.0
    alpha: Annotated[float, fixed("lam/alpha is tuned by lam")] = 1.0
    sigma: Annotated[float, log(10.0, 100.0, source="ours; the paper's values were not at hand")] = 10.0
    self_weight: Annotated[float, choice(0.1, 0.5, 0.9, source="ours, from one over ten clients")] = 0.1
    start: Literal["own", "cloud"] = later("own")

    def __post_init__(self) -> None:
        require(self.lam >= 0, "algorithm.lam", "must not be negative", self.lam)
        require(self.alpha > 0, "algorithm.alpha", "must be positive", self.alpha)
        require(self.sigma > 0, "algorithm.sigma", "must be positive", self.sigma)
        require(0 <= self.self_weight <= 1, "algorithm.self_weight", "must lie in [0, 1]", self.self_weight)

    def check(self, setting: Setting) -> None:
        others = (setting.clients - 1) * self.alpha / self.sigma
        if self.attention == "distance" and others > 1:
            raise Incompatible(
                f"'fedamp' could give the other clients a weight of {others:g} in sum, more than 1; "
                f"raise algorithm.sigma to {(setting.clients - 1) * self.alpha:g}"
            )

    def init(
        self, params: Mapping[str, Tensor], shared: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> tuple[Tree, Tree]:
        return dict(shared), prefixed("w", shared) | prefixed("statistics", buffers)

    def message(self, download: Download) -> Tree:
        w = {client: {path: tree[path] for path in download.server} for client, tree in sorted(download.sent.items())}
        mine = w.pop(download.client, dict(download.server))
        if not w:
            return mine
        xi = self._attention(mine, list(w.values()))
        return {
            path: (1 - xi.sum()) * leaf + torch.tensordot(xi, torch.stack([tree[path] for tree in w.values()]), dims=1)
            for path, leaf in mine.items()
        }

    def client_start(self, params: Tree, local: Local) -> tuple[Tree, Tree]:
        begin = dict(local.server) if self.start == "cloud" else under("w", local.client)
        return params | begin, dict(local.client)

    def penalty(self, step: Step) -> Tensor:
        return self.lam / (2 * self.alpha) * sqdist(step.server, step.params)

    def client_end(self, delta: Tree, local: Local) -> tuple[Tree, Tree, Tree]:
        mine = {path: local.params[path] for path in under("w", local.client)}
        return delta, {}, prefixed("w", mine) | prefixed("statistics", local.buffers)

    def own(self, params: Tree, local: Local) -> Tree:
        return under("w", local.client) | under("statistics", local.client)

    def _attention(self, mine: Tree, others: list[Tree]) -> Tensor:
        """Return the weights xi of the other clients [m - 1]."""
        if self.attention == "distance":
            squared = torch.stack([sqdist(mine, other) for other in others])
            return self.alpha / self.sigma * (-squared / self.sigma).exp()
        cosines = torch.stack([torch.cosine_similarity(_vector(mine), _vector(other), dim=0) for other in others])
        return (1 - self.self_weight) * (self.sigma * cosines).softmax(0)


def _vector(tree: Tree) -> Tensor:
    return torch.cat([tree[path].flatten() for path in sorted(tree)])
