"""Per-FedAvg, first order."""

from typing import Annotated

from fedspan.benchmark.component import Component, Local, Step, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import fixed, log
from fedspan.benchmark.tree import Tree


@algorithm("perfedavg")
class PerFedAvg(Component):
    """Fallah et al. 2020 (NeurIPS), Algorithm 1 with first-order gradients (FO): find weights that adapt in one step.

    A local step computes g on the first half of the batch, takes the gradient at ``w - alpha g(w)`` on the second half,
    and moves w along it by the protocol's SGD, whose rate is the paper's beta. After training each client takes `steps`
    steps of plain gradient descent at rate alpha on its own images, not augmented: the stage ``personalised``.

    The paper draws a batch for each of the two gradients; halving one keeps an epoch the same as for other methods. A
    batch of one image serves for both. A step after training is one pass over all images of the client: BatchNorm takes
    them as one batch, and their activations must fit into memory. The term of second derivatives is omitted, as in the
    paper's FO. Averages are weighted by numbers of samples (uniform in the paper). The engine's own pass at w goes
    unused, so FLOPs and seconds of training are twice those of the algorithm.
    """

    title = "Per-FedAvg"
    summary = "Weights that adapt to each client in one step on its own images."
    papers = ("fallah2020",)

    alpha: Annotated[float, log(1e-3, 1e-1, source="ours, around the paper's 0.01")] = 0.01
    steps: Annotated[int, fixed("one in the paper")] = 1
    neutral = {"alpha": 0.0}

    def __post_init__(self) -> None:
        require(self.alpha >= 0, "algorithm.alpha", "must not be negative", self.alpha)
        require(self.steps >= 1, "algorithm.steps", "must be at least 1", self.steps)

    @property
    def idle(self) -> frozenset[str]:
        return frozenset({"grads", "own"} if self.alpha == 0 else ())

    def grads(self, grads: Tree, step: Step) -> Tree:
        half = len(step.y) // 2
        first = step.grad_at(step.params, slice(0, half) if half else None)
        adapted = {path: step.params[path] - self.alpha * g for path, g in first.items()}
        return step.grad_at({**step.params, **adapted}, slice(half, None))

    def own(self, params: Tree, local: Local) -> Tree:
        weights, statistics = dict(params), dict(local.buffers)
        for _ in range(self.steps):
            grads, statistics = local.learn_at(weights, statistics)
            weights |= {path: weights[path] - self.alpha * g for path, g in grads.items()}
        return weights | statistics
