"""FedSAM."""

from typing import Annotated

from fedspan.benchmark.component import Component, Step, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import log
from fedspan.benchmark.tree import Tree, add, root, scale, sqnorm


@algorithm("fedsam")
class FedSAM(Component):
    """Qu et al. 2022 (ICML) and Caldarola et al. 2022 (ECCV): clients minimise the worst loss within radius rho.

    The gradient at ``w + rho g / ||g||`` replaces each gradient g, at twice the cost. rho is 0.05 in the code released
    with FedDecorr 2023, where the option clashes with that of the SGD momentum and sets it to 0.05 too; here the
    protocol's momentum holds. BatchNorm's running statistics follow the first pass only; in that code the second pass
    updates them again, which affects tests but never training.
    """

    title = "FedSAM"
    summary = "Clients minimise the worst loss in a neighbourhood of their weights."
    papers = ("qu2022", "caldarola2022")

    rho: Annotated[float, log(5e-3, 0.5, source="ours, around the released 0.05")] = 0.05
    neutral = {"rho": 0.0}
    version = 2  # 1 computed penalties in bfloat16 under protocol.precision=bf16, unlike every other algorithm

    def __post_init__(self) -> None:
        require(self.rho >= 0, "algorithm.rho", "must not be negative", self.rho)

    def grads(self, grads: Tree, step: Step) -> Tree:
        ascent = scale(grads, self.rho / (root(sqnorm(grads)) + 1e-12))
        return step.grad_at({**step.params, **add(ascent, step.params)})
