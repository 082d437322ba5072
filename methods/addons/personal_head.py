"""A personal head for each client."""

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedspan.benchmark.component import addon
from fedspan.benchmark.errors import require
from fedspan.benchmark.head import HeadTraining, least_squares, normal_equations
from fedspan.benchmark.search import fixed
from fedspan.benchmark.tree import Tree


@addon("personal_head")
class PersonalHead(HeadTraining):
    """Oh et al. 2022 (ICLR), and Dong et al. 2022 (ECCV), App. B: after training each client tunes its own head.

    Each client fits the head to the features of its own training images, for the stage ``personalised``: with ``sgd``
    from the trained head, minimising `criterion`, or with ``ffc`` as the least-squares head without bias (Eq. 7, with
    `ridge`). It starts from the trained weights, even if the method also calibrates them. The body stays as it is, and
    images are not augmented. The sources state no learning rate; Oh et al. tune for 5 epochs.
    """

    title = "Personal head"
    summary = "Each client fine-tunes its own head after training."
    papers = ("oh2022", "dong2022")
    wording = {
        "by": {"sgd": "by SGD", "ffc": "in closed form"},
        "criterion": {"ce": "cross-entropy", "mse": "squared error"},
        "epochs": "{} epochs",
    }

    by: Literal["sgd", "ffc"] = "sgd"
    criterion: Literal["ce", "mse"] = "ce"
    ridge: Annotated[float, fixed("for by=ffc alone, and kept at 0 by the paper")] = 0.0
    epochs: Annotated[int, fixed("5 in the paper")] = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.ridge >= 0, "addon.personal_head.ridge", "must not be negative", self.ridge)

    def personalise(
        self, params: Mapping[str, Tensor], features: Tensor, labels: Tensor, classes: int, rng: torch.Generator
    ) -> Tree:
        if self.by == "sgd":
            return self.fit(params, features, labels, self.criterion, rng)
        return least_squares(params, **normal_equations(features.double(), labels, classes), ridge=self.ridge)
