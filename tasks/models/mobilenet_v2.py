"""MobileNetV2 for small images."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedspan.benchmark.net import Net
from fedspan.benchmark.task import Model, model
from fedspan.tasks.models.layers import (
    Norm,
    NormOf,
    conv_norm,
    first_stride,
    norm_of,
    require_groups,
    require_larger_than,
)

# expansion, output channels, blocks, stride of the first block
STAGES = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
FEATURES = 1280


@model("mobilenet_v2")
class MobileNetV2(Model):
    """MobileNetV2 (Sandler et al. 2018) for small images, as FedDecorr or as SphereFed builds it.

    Both: at 32 pixels stride 1 in the stem and in the first two stages, 17 blocks with linear projections, average
    pooling of the last map, 1,280 features.

    `variant`:

    - `feddecorr`, the released code (2023): a shortcut at every stride of 1 (1x1 convolution and norm where the
      channels change, else the identity); a classifier with bias; 2,296,922 parameters for 10 classes. The last map is
      4x4 at 32 pixels and 8x8 at 64.
    - `spherefed`, Table 14 (2022): the second stage has stride 2 from 64 pixels on (TIN_S), so the last map is 4x4 at
      64 pixels too; a classifier without bias. The table prints no shortcuts and a ReLU after every projection; this
      model has Sandler et al.'s identity shortcuts and linear projections, without which it would be no MobileNetV2.
      The stem's padding, not printed, is 1.

    `norm` is `batch` in FedDecorr and in SphereFed's CIFAR-100 runs, and `group` in its TinyImageNet runs (App. F.1),
    which do not state the number of `groups`.
    """

    title = "MobileNetV2"
    summary = "Inverted residuals and linear bottlenecks, for small images."
    papers = ("sandler2018",)
    wording = {
        "variant": {"feddecorr": "FedDecorr's", "spherefed": "SphereFed's"},
        "norm": "{} norm",
        "groups": "{} groups",
    }

    variant: Literal["feddecorr", "spherefed"] = "feddecorr"
    norm: Norm = "batch"
    groups: int = 2

    def __post_init__(self) -> None:
        require_groups(self.groups, *(width for _, width, _, _ in STAGES))

    def build(self, shape: tuple[int, int, int], classes: int) -> Net:
        require_larger_than(8, self.name, shape)
        spherefed, norm = self.variant == "spherefed", norm_of(self.norm, self.groups)
        layers: list[nn.Module] = [conv_norm(shape[0], 32, 3, norm=norm), nn.ReLU()]
        channels = 32
        for stage, (expansion, out, blocks, stride) in enumerate(STAGES):
            if spherefed and stage == 1:
                stride = first_stride(shape)
            for block in range(blocks):
                step = stride if block == 0 else 1
                layers.append(InvertedResidual(channels, out, expansion, step, norm, projected=not spherefed))
                channels = out
        layers += [conv_norm(channels, FEATURES, 1, norm=norm), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        return Net(nn.Sequential(*layers), nn.Linear(FEATURES, classes, bias=not spherefed))


class InvertedResidual(nn.Module):
    """Inverted residual: expand by 1x1, filter each channel by 3x3, project by 1x1 without activation.

    At stride 1 the input is added, through a 1x1 convolution if `projected` and the channels change.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        expansion: int,
        stride: int,
        norm: NormOf = nn.BatchNorm2d,
        projected: bool = True,
    ) -> None:
        super().__init__()
        hidden = expansion * inputs
        self.expand = conv_norm(inputs, hidden, 1, norm=norm)
        self.depthwise = conv_norm(hidden, hidden, 3, stride, groups=hidden, norm=norm)
        self.project = conv_norm(hidden, outputs, 1, norm=norm)
        self.residual = stride == 1 and (projected or inputs == outputs)
        self.shortcut: nn.Module = nn.Identity()
        if self.residual and inputs != outputs:
            self.shortcut = conv_norm(inputs, outputs, 1, norm=norm)

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(F.relu(self.depthwise(F.relu(self.expand(x)))))
        return torch.add(y, self.shortcut(x)) if self.residual else y
