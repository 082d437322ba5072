"""A network of linear layers."""

import itertools
import math

from torch import nn

from fedspan.benchmark.errors import require
from fedspan.benchmark.net import Net
from fedspan.benchmark.task import Model, model


@model("linear_net")
class LinearNet(Model):
    """`layers` linear layers without bias or activation, including the classifier: the net of FedDecorr's theory.

    Shi et al. 2023, Sec. 3.3 and App. A; Fig. 6 trains three layers on MNIST without stating the `width` of the hidden
    layers. With one layer the representation is the image itself.
    """

    title = "Linear net"
    summary = "Linear layers without activation: the net of FedDecorr's theory."
    papers = ("shi2023",)
    wording = {"layers": "{} layers"}

    layers: int = 3
    width: int = 256

    def __post_init__(self) -> None:
        require(self.layers >= 1, "model.layers", "must be at least 1", self.layers)
        require(self.width >= 1, "model.width", "must be at least 1", self.width)

    def build(self, shape: tuple[int, int, int], classes: int) -> Net:
        widths = [math.prod(shape), *[self.width] * (self.layers - 1)]
        hidden = [nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(widths)]
        return Net(nn.Sequential(nn.Flatten(), *hidden), nn.Linear(widths[-1], classes, bias=False))
