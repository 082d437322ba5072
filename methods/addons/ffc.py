"""Fast federated calibration."""

from collections.abc import Mapping
from typing import Annotated

import torch
from torch import Tensor

from fedspan.benchmark.component import Component, addon
from fedspan.benchmark.errors import require
from fedspan.benchmark.head import least_squares, least_squares_flops, normal_equations
from fedspan.benchmark.search import choice, fixed
from fedspan.benchmark.tree import Tree


@addon("ffc")
class FFC(Component):
    """Dong et al. 2022 (ECCV), Sec. 4.3, Eq. 9 and 10: the least-squares head from the clients' sums Z'Z and Z'Y.

    It works on features trained with any loss (App. C.3). With l features and C classes, each client sends l(l + C)
    numbers. The head has no bias, as in the paper; a model's own bias is set to 0. `ridge` is added to the diagonal of
    the summed Z'Z (Eq. 12; tuned over 0, 1e-3, 1e-2, 1e-1, 1, 10, and kept at 0). Without ridge the pseudo-inverse
    solves a singular Z'Z. With `every` > 0 it also calibrates once every `every` rounds, and training continues from
    there (App. C.2 tries 10).
    """

    title = "FFC"
    summary = "After training, the server solves for the least-squares head from sums over the clients."
    papers = ("dong2022",)
    wording = {"every": {0: "calibrated at the end", ...: "calibrated every {} rounds"}}

    ridge: Annotated[float, choice(0.0, 1e-3, 1e-2, 1e-1, 1.0, 10.0, source="SphereFed 2022, App. C.1")] = 0.0
    every: Annotated[int, fixed("it sets the compute; App. C.2 tries 10")] = 0

    def __post_init__(self) -> None:
        require(self.ridge >= 0, f"addon.{self.name}.ridge", "must not be negative", self.ridge)
        require(self.every >= 0, f"addon.{self.name}.every", "must be 0 (only at the end) or more", self.every)

    @property
    def calibrates_every(self) -> int:
        return self.every

    def stats(self, features: Tensor, labels: Tensor, classes: int) -> Tree:
        return normal_equations(features, labels, classes)

    def calibration_cost(self, images: int, clients: int, features: int, classes: int) -> tuple[int, int]:
        """Return (numbers, FLOPs) of Sec. 4.3: l(l + C) per client; 2 l D (l + C) for Eq. 9, plus those of Eq. 10."""
        fitted = least_squares_flops(features, classes)
        return clients * features * (features + classes), 2 * features * images * (features + classes) + fitted

    def calibrate(self, params: Mapping[str, Tensor], sums: Mapping[str, Tensor], rng: torch.Generator) -> Tree:
        return least_squares(params, sums["zz"], sums["zy"], self.ridge)
