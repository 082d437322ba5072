"""FedSpeed."""

from typing import Annotated, Literal

from fedspan.benchmark.component import Aggregate, Local, Step, Upload, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import fixed, log
from fedspan.benchmark.tree import Tree, add, root, scale, sqnorm, tree_map, under
from fedspan.methods.drift import DRIFT, DriftCorrection


@algorithm("fedspeed")
class FedSpeed(DriftCorrection):
    """Sun et al. 2023 (ICLR): a corrected proximal term, and gradients at a perturbed point.

    With the gradient g at v, and g' at ``v + rho g / ||g||``, a local step follows
    ``(1 - alpha) g + alpha g' - q_i + prox (v - w)``, where prox is the paper's 1 / lambda and the correction
    ``q_i = q_i - prox (w_i - w)`` is -prox times the drift h_i of `fedspan.methods.drift`: the sum of the client's
    updates. The averaged models are ``w_i + h_i`` (the paper's w_i - lambda q_i). Every step costs two gradients.

    The paper averages these models over the participants (``corrections=participants``). The authors' code, which the
    default follows, adds the mean h_i of all clients to the participants' mean w_i (``all``); with full participation
    the two agree. That code divides the ascent step by the gradient's norm, as here, has alpha 1, prox 0.1 and rho 0.1,
    and clips gradients at norm 10. Its SGD has no momentum; here the step above goes through the protocol's, which the
    boards set to none.
    """

    title = "FedSpeed"
    summary = "A corrected proximal term, and gradients at a perturbed point."
    papers = ("sun2023",)
    wording = {"corrections": {"all": "all corrections", "participants": "participants' corrections"}}

    rho: Annotated[float, log(5e-3, 0.5, source="ours, FedSAM's; the released code has 0.1")] = 0.1
    alpha: Annotated[float, fixed("1 in the released code: the gradient uphill alone")] = 1.0
    prox: Annotated[float, log(1e-3, 1.0, source="ours, around the released 0.1")] = 0.1
    corrections: Literal["all", "participants"] = "all"

    def __post_init__(self) -> None:
        require(self.rho >= 0, "algorithm.rho", "must not be negative", self.rho)
        require(0 <= self.alpha <= 1, "algorithm.alpha", "must lie in [0, 1]", self.alpha)
        require(self.prox > 0, "algorithm.prox", "must be positive", self.prox)

    def grads(self, grads: Tree, step: Step) -> Tree:
        ascent = scale(grads, self.rho / (root(sqnorm(grads)) + 1e-12))
        uphill = step.grad_at({**step.params, **add(ascent, step.params)})
        merged = tree_map(lambda g, u: (1 - self.alpha) * g + self.alpha * u, grads, uphill)
        pull = {path: self.prox * (step.params[path] - w) for path, w in self.anchor(step).items() if path in merged}
        return merged | add(pull, merged)

    def client_end(self, delta: Tree, local: Local) -> tuple[Tree, Upload, Tree]:
        delta, upload, client = super().client_end(delta, local)
        if self.corrections == "participants":
            delta = add(delta, under(DRIFT, client))
        return delta, upload, client

    def server(self, delta: Tree, agg: Aggregate) -> tuple[Tree, Tree]:
        if self.corrections == "participants":
            return delta, dict(agg.server)
        return super().server(delta, agg)
