"""A head trained on the pooled features of all clients."""

import itertools
from collections.abc import Mapping
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedspan.benchmark.component import addon
from fedspan.benchmark.errors import require
from fedspan.benchmark.head import (
    BIAS,
    WEIGHT,
    Criterion,
    HeadTraining,
    least_squares,
    least_squares_flops,
    normal_equations,
)
from fedspan.benchmark.search import fixed
from fedspan.benchmark.tree import Tree, finite


@addon("oracle_head")
class OracleHead(HeadTraining):
    """Dong et al. 2022 (ECCV), Sec. 5.3, Table 4: the sanity check, a head tuned on the pooled features of all clients.

    A bound, not a federated method. `by` selects the training:

    - ``search``, as in the paper: SGD from the trained head with each of `criteria` at each of `rates`; the best is
      reported. Here candidates train without a share `held_out` of the training images, and the most accurate one on
      that share (the first of equals) is retrained on all images. No test image is used. The paper states neither the
      rates (`rates` are those of its App. F.2) nor the epochs nor the images used for selection; its other tuning holds
      out 15% of the training images (Sec. 5.1);
    - ``sgd``: SGD with `criterion` at `lr`;
    - ``closed``: least squares with `ridge` and without bias, the head that ``ffc`` computes from sums.
    """

    title = "Oracle head"
    summary = "After training, tune the head on the pooled features of all clients: a bound, not a federated method."
    papers = ("dong2022",)
    wording = {
        "by": {"search": "by search", "sgd": "by SGD", "closed": "in closed form"},
        "criterion": {"ce": "cross-entropy", "mse": "squared error"},
    }

    by: Literal["search", "sgd", "closed"] = "search"
    ridge: Annotated[float, fixed("for by=closed alone")] = 0.0
    criterion: Criterion = "ce"
    criteria: tuple[Criterion, ...] = ("ce", "mse")
    rates: Annotated[tuple[float, ...], fixed("a grid itself")] = (0.005, 0.01, 0.05, 0.1, 0.5, 0.8, 1.0)
    held_out: Annotated[float, fixed("0.15 in the paper's own tuning")] = 0.15
    pools = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.ridge >= 0, "addon.oracle_head.ridge", "must not be negative", self.ridge)
        require(bool(self.criteria), "addon.oracle_head.criteria", "must name a loss", list(self.criteria))
        positive = bool(self.rates) and min(self.rates) > 0
        require(positive, "addon.oracle_head.rates", "must be positive learning rates", list(self.rates))
        require(0 < self.held_out < 1, "addon.oracle_head.held_out", "must lie in (0, 1)", self.held_out)

    def calibration_cost(self, images: int, clients: int, features: int, classes: int) -> tuple[int, int]:
        """Return (numbers, FLOPs): all features and labels; the closed form, one fit, or all candidates and a refit."""
        if self.by == "closed":
            flops = 2 * images * features * (features + classes) + least_squares_flops(features, classes)
        else:
            flops = self.fit_flops(images, features, classes)
        if self.by == "search":
            held = self._held(images)
            candidate = self.fit_flops(images - held, features, classes) + 2 * held * features * classes
            flops += len(self.criteria) * len(self.rates) * candidate
        return images * (features + 1), flops

    def _held(self, images: int) -> int:
        """Return the number of images held out to choose among the candidates."""
        return min(max(1, round(self.held_out * images)), images - 1)

    def calibrate(self, params: Mapping[str, Tensor], sums: Mapping[str, Tensor], rng: torch.Generator) -> Tree:
        features, labels = sums["features"], sums["labels"]
        if self.by == "closed":
            return least_squares(
                params, **normal_equations(features.double(), labels, len(params[WEIGHT])), ridge=self.ridge
            )
        if self.by == "sgd":
            return self.fit(params, features, labels, self.criterion, rng)
        return self._search(params, features, labels, rng)

    def _search(self, params: Mapping[str, Tensor], features: Tensor, labels: Tensor, rng: torch.Generator) -> Tree:
        order = torch.randperm(len(labels), generator=rng).to(labels.device)
        count = self._held(len(labels))
        held, rest = order[:count], order[count:]
        seed = int(torch.randint(2**62, (1,), generator=rng))  # candidates differ in loss and rate only: same batches

        def fitted(criterion: Criterion, rate: float, images: Tensor) -> Tree:
            draws = torch.Generator().manual_seed(seed)
            return self.fit(params, features[images], labels[images], criterion, draws, rate)

        candidates = list(itertools.product(self.criteria, self.rates))
        rights = [right_answers(fitted(*one, rest), features[held], labels[held]) for one in candidates]
        return fitted(*candidates[rights.index(max(rights))], torch.arange(len(labels), device=labels.device))


def right_answers(params: Mapping[str, Tensor], features: Tensor, labels: Tensor) -> int:
    """Return how many features [n, d] the head classifies as labelled [n]; -1 if its weights are not finite."""
    head = {path: params[path] for path in (WEIGHT, BIAS) if path in params}
    if not finite(head):
        return -1
    logits = F.linear(features.to(head[WEIGHT]), head[WEIGHT], head.get(BIAS))
    return int((logits.argmax(1) == labels).sum())
