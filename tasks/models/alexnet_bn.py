"""AlexNet with batch norm."""

import torch.nn.functional as F
from torch import Tensor, nn

from fedspan.benchmark.net import Net
from fedspan.benchmark.task import Model, model
from fedspan.tasks.models.layers import require_larger_than

FEATURES = 4096


@model("alexnet_bn")
class AlexNetBN(Model):
    """AlexNet (Krizhevsky 2014) with batch norm, as in FedBN's public code (Li et al. 2021): 4,096 features.

    The journal version of FedDecorr uses "AlexNet with batch normalization" for its domain experiments, follows FedBN's
    setup there and gives no details. Five convolutions (64, 192, 384, 256, 256 channels), average pooling to 6x6, two
    hidden layers of 4,096, batch norm after each of the seven, a classifier with bias. FedBN's images have 256x256
    pixels and give a last map of 7x7. Below 223 pixels the map is smaller than 6x6 and pooling repeats pixels; below 63
    the stem's stride is 1, because 4 would leave nothing to pool.
    """

    title = "AlexNet with batch norm"
    summary = "Five convolutions and two hidden layers, batch norm after each: FedBN's AlexNet."
    papers = ("krizhevsky2014", "li2021fedbn")

    def build(self, shape: tuple[int, int, int], classes: int) -> Net:
        require_larger_than(20, self.name, shape)
        stride = 4 if min(shape[1:]) >= 63 else 1
        body = nn.Sequential(
            *conv(shape[0], 64, 11, stride, padding=2), nn.MaxPool2d(3, 2),
            *conv(64, 192, 5, padding=2), nn.MaxPool2d(3, 2),
            *conv(192, 384, 3), *conv(384, 256, 3), *conv(256, 256, 3), nn.MaxPool2d(3, 2),
            nn.AdaptiveAvgPool2d(6), nn.Flatten(),
            nn.Linear(256 * 36, FEATURES), RowNorm(FEATURES), nn.ReLU(),
            nn.Linear(FEATURES, FEATURES), RowNorm(FEATURES), nn.ReLU(),
        )  # fmt: skip
        return Net(body, nn.Linear(FEATURES, classes))


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 1) -> tuple[nn.Module, ...]:
    """Return a convolution with bias, batch norm and ReLU."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)


class RowNorm(nn.BatchNorm1d):
    """Batch norm over rows. A batch of one row has no variance: it is normalised by the running statistics."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 1 or not self.training:
            return super().forward(x)
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
