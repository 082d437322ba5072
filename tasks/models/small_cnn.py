"""A small convolutional net for small images."""

from typing import Literal

from torch import nn

from fedspan.benchmark.errors import Incompatible, require
from fedspan.benchmark.net import Net
from fedspan.benchmark.task import Model, model


@model("small_cnn")
class SmallCNN(Model):
    """Two 3x3 convolutions with pooling and one hidden layer, after the CNN of McMahan et al. 2017, Sec. 3.

    For images of at least 4x4 pixels; `width` channels, then twice as many, then a representation of `features`
    dimensions. The representation is linear by default: with ``activation=relu``, as in the original, dimensions dead
    for every image would satisfy a decorrelation penalty.
    """

    title = "Small CNN"
    summary = "Two convolutions and one hidden layer, for quick runs."
    papers = ("mcmahan2017",)
    wording = {"features": "{} features"}

    width: int = 16
    features: int = 64
    activation: Literal["none", "relu"] = "none"

    def __post_init__(self) -> None:
        require(self.width >= 1, "model.width", "must be at least 1", self.width)
        require(self.features >= 1, "model.features", "must be at least 1", self.features)

    def build(self, shape: tuple[int, int, int], classes: int) -> Net:
        channels, height, width = shape
        if min(height, width) < 4:
            raise Incompatible(f"small_cnn needs images of at least 4x4 pixels, got {height}x{width}")
        body = nn.Sequential(
            nn.Conv2d(channels, self.width, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),  # after pooling: the same function on a quarter of the numbers
            nn.Conv2d(self.width, 2 * self.width, 3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * self.width * (height // 4) * (width // 4), self.features),
            nn.ReLU() if self.activation == "relu" else nn.Identity(),
        )
        return Net(body, nn.Linear(self.features, classes))
