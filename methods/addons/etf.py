"""FedETF."""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedspan.benchmark.component import Component, Setting, Step, addon
from fedspan.benchmark.errors import Incompatible, require
from fedspan.benchmark.head import in_head
from fedspan.benchmark.net import Net, Unit
from fedspan.benchmark.registry import later
from fedspan.benchmark.search import choice, fixed
from fedspan.benchmark.tree import root


class Temperature(nn.Module):
    """A layer that multiplies its input by a learnt scalar."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([initial]))

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * features


@addon("etf")
class ETF(Component):
    """Li et al. 2023 (ICCV), FedETF: a fixed simplex ETF classifier on projected unit features, and a balanced loss.

    The classifier's rows are ``V = sqrt(C / (C - 1)) U (I - 11' / C)`` with U a random orthonormal matrix: the classes
    are as far apart as possible, and the same on every client. Between body and classifier, features are projected
    linearly to `width` dimensions and scaled to unit length, which gives mu. Client k minimises the balanced feature
    loss, the cross-entropy of ``t V mu + gamma log n_k`` with n_k its images per class. The temperature t is learnt and
    is part of the features that other components see.

    A class without images has ``log 0``. It is `removed` from the softmax, so a client with a single class learns
    nothing; with ``absent=kept`` it counts as one image, as in the authors' code, and pushes features away from its
    vertex. At gamma 0 the loss is the plain cross-entropy over all classes, whatever `absent` says.

    `width` 0 keeps the number of the body's features, as in the authors' CNN for CIFAR10; their ResNets project to as
    many dimensions as there are classes. t starts at 10 in that CNN and at 1 in the ResNets. Their U comes from the QR
    decomposition of a matrix with entries uniform in [0, 1), so it is not uniformly distributed; here it is. They
    fine-tune projection and classifier alternately on each client; add ``personal_head`` to tune the classifier.
    """

    title = "FedETF"
    summary = "A fixed simplex classifier on projected unit features, trained with a balanced loss."
    papers = ("li2023",)
    wording = {"width": "projection to {}", "absent": "absent classes {}"}

    width: Annotated[int, fixed("it belongs to the model")] = 0
    gamma: Annotated[float, choice(0.0, 0.5, 1.0, source="ours, below the paper's 1")] = 1.0
    temperature: Annotated[float, choice(1.0, 10.0, source="Li et al. 2023, the authors' models")] = 10.0
    absent: Literal["removed", "kept"] = later("removed")
    excludes = ("babu", "spherefed")

    def __post_init__(self) -> None:
        require(self.width >= 0, "addon.etf.width", "must be 0 (that of the features) or more", self.width)
        require(self.gamma >= 0, "addon.etf.gamma", "must not be negative", self.gamma)
        require(self.temperature > 0, "addon.etf.temperature", "must be positive", self.temperature)

    def net(self, net: Net, setting: Setting) -> Net:
        features, classes = net.head.in_features, setting.classes
        if type(net.head) is not nn.Linear:
            raise Incompatible(
                "'etf' replaces the head, and the algorithm compares what its own head makes; use "
                "algorithm.representation=projected"
            )
        width = self.width or features
        if classes > width:
            raise Incompatible(
                f"'etf' needs {classes} orthonormal columns for {classes} classes, but projects to {width} dimensions; "
                f"use addon.etf.width={classes} or more"
            )
        head = nn.Linear(width, classes, bias=False)
        head.weight.data = simplex(classes, width).to(head.weight)
        return Net(nn.Sequential(net.body, nn.Linear(features, width), Unit(), Temperature(self.temperature)), head)

    def trainable(self, path: str) -> bool:
        return not in_head(path)

    def loss(self, step: Step) -> Tensor:
        n = step.counts if self.absent == "removed" else step.counts.clamp(min=1)
        prior = self.gamma * n.log() if self.gamma else torch.zeros_like(n)
        return F.cross_entropy(step.logits + prior, step.y)


def simplex(classes: int, dimensions: int) -> Tensor:
    """Return unit rows [classes, dimensions] in float64 with all cosines equal to -1 / (classes - 1): a simplex ETF."""
    q, r = torch.linalg.qr(torch.randn(dimensions, classes, dtype=torch.float64))
    centre = torch.eye(classes, dtype=torch.float64) - 1 / classes
    spread = root(torch.tensor(classes / max(classes - 1, 1), dtype=torch.float64))
    return (spread * (q * r.diagonal().sign()) @ centre).T.contiguous()
