"""ResNet18 for small images."""

from typing import Literal

from torch import nn

from fedspan.benchmark.net import Net
from fedspan.benchmark.task import Model, model
from fedspan.tasks.models.layers import (
    Norm,
    Residual,
    first_stride,
    norm_of,
    projection,
    require_groups,
    require_larger_than,
    residual_body,
)

WIDTHS = (64, 128, 256, 512)


@model("resnet18")
class ResNet18(Model):
    """ResNet18 (He et al. 2016) for small images, as FedDecorr or as SphereFed builds it: 512 features.

    A 3x3 stem without pooling, four stages of two blocks, projections (1x1 convolution and norm) on the shortcuts
    where the shape changes, the average over the last map.

    `variant`:

    - `feddecorr`, the released code (2023): strides 1, 2, 2, 2; a classifier with bias. That code pools 4x4 and so
      takes 32x32 images only; averaging the whole map gives the same there and takes other sizes too. (512 features as
      in App. C.3; the 64 of App. D.2 is a slip.)
    - `spherefed`, Table 15 (2022): the first stage has stride 2 from 64 pixels on (TIN_S), so the last map is 4x4 at 32
      and at 64 pixels; a classifier without bias. The table prints no shortcuts; these are He et al.'s. It prints a
      norm of 256 channels behind a convolution with 512; here it has 512.

    `norm` is `batch` in FedDecorr and `group` in SphereFed (App. F.1), which does not state the number of `groups`.
    """

    title = "ResNet18"
    summary = "Residual net of 18 layers, for small images."
    papers = ("he2016",)
    wording = {
        "variant": {"feddecorr": "FedDecorr's", "spherefed": "SphereFed's"},
        "norm": "{} norm",
        "groups": "{} groups",
    }

    variant: Literal["feddecorr", "spherefed"] = "feddecorr"
    norm: Norm = "batch"
    groups: int = 2

    def __post_init__(self) -> None:
        require_groups(self.groups, *WIDTHS)

    def build(self, shape: tuple[int, int, int], classes: int) -> Net:
        require_larger_than(8, self.name, shape)
        spherefed, norm = self.variant == "spherefed", norm_of(self.norm, self.groups)

        def block(inputs: int, outputs: int, stride: int) -> nn.Module:
            return Residual(inputs, outputs, stride, norm, projection(inputs, outputs, stride, norm))

        strides = (first_stride(shape) if spherefed else 1, 2, 2, 2)
        body = residual_body(shape[0], WIDTHS, strides, 2, norm, block)
        return Net(body, nn.Linear(WIDTHS[-1], classes, bias=not spherefed))
