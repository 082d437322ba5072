"""FedSMOO."""

from collections.abc import Mapping
from typing import Annotated, Literal

from torch import Tensor

from fedspan.benchmark.component import Aggregate, Local, Step, Upload, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import log
from fedspan.benchmark.tree import Tree, add, prefixed, root, sqnorm, sub, under, zeros
from fedspan.methods.drift import DriftCorrection

DUAL, ASCENT, CONSENSUS = "mu", "ascent", "s"


@algorithm("fedsmoo")
class FedSMOO(DriftCorrection):
    """Sun et al. 2023 (ICML): FedDyn's regulariser, and perturbations like FedSAM's that all clients agree on.

    With the gradient g at v, a client perturbs its weights by ``e = rho d / ||d||`` along ``d = g - mu_i - s``, adds
    ``e - s`` to its dual variable mu_i, and follows ``g' + prox (v - w + h_i)``, where g' is the gradient at ``v + e``
    and h_i the client's drift (`fedspan.methods.drift`). The server sends s, the mean of a second upload scaled to
    length rho: ``mu_i - e`` with the last e (``dual=full``), or mu_i alone (``released``, the default), as in the
    authors' code, which states that it omits e because it is small. Every step costs two gradients, every round twice
    the bytes.

    rho and prox default to that code's values. It clips gradients at norm 10, which is not done here, and has no
    momentum; here the step goes through the protocol's SGD.
    """

    title = "FedSMOO"
    summary = "FedDyn with sharpness-aware steps, whose perturbations the clients agree on."
    papers = ("sun2023smoo",)
    wording = {"dual": {"full": "full dual"}}

    rho: Annotated[float, log(5e-3, 0.5, source="ours, FedSAM's; the released code has 0.1")] = 0.1
    prox: Annotated[float, log(1e-3, 1.0, source="ours, around the released 0.1")] = 0.1
    dual: Literal["released", "full"] = "released"

    def __post_init__(self) -> None:
        require(self.rho > 0, "algorithm.rho", "must be positive", self.rho)
        require(self.prox > 0, "algorithm.prox", "must be positive", self.prox)

    def init(
        self, params: Mapping[str, Tensor], shared: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> tuple[Tree, Tree]:
        server, client = super().init(params, shared, buffers)
        nothing = zeros(shared)
        return server | prefixed(CONSENSUS, nothing), client | prefixed(DUAL, nothing) | prefixed(ASCENT, nothing)

    def broadcast(self, server: Mapping[str, Tensor]) -> Tree:
        return prefixed(CONSENSUS, under(CONSENSUS, server))

    def carry(self, grads: Tree, step: Step) -> Tree:
        mu, s = under(DUAL, step.client), under(CONSENSUS, step.server)
        moved = {path: leaf for path, leaf in mu.items() if path in grads}
        ascent = self._of_length_rho({path: grads[path] - leaf - s[path] for path, leaf in moved.items()})
        moved = {path: leaf + ascent[path] - s[path] for path, leaf in moved.items()}
        return dict(step.client) | prefixed(DUAL, moved) | prefixed(ASCENT, zeros(mu) | ascent)

    def grads(self, grads: Tree, step: Step) -> Tree:
        ascent = under(ASCENT, step.client)
        uphill = step.grad_at({**step.params, **add(ascent, step.params)})
        pull = {path: self.prox * (step.params[path] - w) for path, w in self.anchor(step).items() if path in uphill}
        return uphill | add(pull, uphill)

    def client_end(self, delta: Tree, local: Local) -> tuple[Tree, Upload, Tree]:
        delta, _, drift = super().client_end(delta, local)
        mu = under(DUAL, local.client)
        sent = mu if self.dual == "released" else sub(mu, under(ASCENT, local.client))
        return delta, sent, dict(local.client) | drift

    def server(self, delta: Tree, agg: Aggregate) -> tuple[Tree, Tree]:
        delta, drift = super().server(delta, agg)
        mean = {path: (leaf / agg.participants).to(agg.params[path]) for path, leaf in agg.sums.items()}
        return delta, drift | prefixed(CONSENSUS, self._of_length_rho(mean))

    def _of_length_rho(self, tree: Tree) -> Tree:
        return {path: leaf * (self.rho / (root(sqnorm(tree)) + 1e-7)).to(leaf) for path, leaf in tree.items()}
