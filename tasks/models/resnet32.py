"""ResNet32 for small images."""

from fedspan.benchmark.net import Net
from fedspan.benchmark.task import Model, model
from fedspan.tasks.models.layers import narrow_resnet


@model("resnet32")
class ResNet32(Model):
    """ResNet32 of He et al. 2016 for CIFAR, as FedDecorr (2023) released it: 64 features, a classifier with bias.

    Three stages of 5 blocks with 16, 32 and 64 channels, shortcuts without parameters, Kaiming-normal weights.
    """

    title = "ResNet32"
    summary = "The small residual net of 32 layers for CIFAR."
    papers = ("he2016",)

    def build(self, shape: tuple[int, int, int], classes: int) -> Net:
        return narrow_resnet(self.name, shape, classes, blocks=5)
