"""ResNet20 for small images."""

from fedspan.benchmark.net import Net
from fedspan.benchmark.task import Model, model
from fedspan.tasks.models.layers import narrow_resnet


@model("resnet20")
class ResNet20(Model):
    """ResNet20 of He et al. 2016 for CIFAR, as FedDecorr (2023) released it: 64 features, a classifier with bias.

    Three stages of 3 blocks with 16, 32 and 64 channels, shortcuts without parameters, Kaiming-normal weights.
    """

    title = "ResNet20"
    summary = "The small residual net of 20 layers for CIFAR."
    papers = ("he2016",)

    def build(self, shape: tuple[int, int, int], classes: int) -> Net:
        return narrow_resnet(self.name, shape, classes, blocks=3)
