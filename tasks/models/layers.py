"""Building blocks shared by several models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from fedspan.benchmark.errors import Incompatible, require
from fedspan.benchmark.net import Net

Norm = Literal["batch", "group"]
NormOf = Callable[[int], nn.Module]  # channels -> normalisation layer


def norm_of(norm: Norm, groups: int) -> NormOf:
    """Return a factory from number of channels to normalisation layer; only group norm uses `groups`."""
    if norm == "batch":
        return nn.BatchNorm2d
    return lambda channels: nn.GroupNorm(groups, channels)


def require_groups(groups: int, *widths: int) -> None:
    """Raise `UserError` unless `groups` divides every number of channels."""
    divides = groups >= 1 and all(width % groups == 0 for width in widths)
    require(divides, "model.groups", f"must divide the channel numbers {', '.join(map(str, widths))}", groups)


def require_larger_than(side: int, name: str, shape: tuple[int, int, int]) -> None:
    """Raise `Incompatible` unless both sides of the images exceed `side` pixels.

    In smaller images the last normalisation of the model `name` would see one pixel or none.
    """
    _, height, width = shape
    if min(height, width) <= side:
        raise Incompatible(f"{name} needs images larger than {side}x{side}, got {height}x{width}")


def first_stride(shape: tuple[int, int, int]) -> int:
    """Return SphereFed's TIN_S: 1 for CIFAR-100's 32 pixels, 2 for TinyImageNet's 64 (here: from 64 pixels on)."""
    return 2 if min(shape[1:]) >= 64 else 1


def conv_norm(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, norm: NormOf = nn.BatchNorm2d
) -> nn.Sequential:
    """Return a convolution without bias, padded to keep the size at stride 1, followed by normalisation."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, norm(outputs))


class Residual(nn.Module):
    """Two 3x3 convolutions with a shortcut, `act(scale(norm(conv)) + shortcut)` (He et al. 2016, basic block).

    `scale` re-weights the channels before the addition (identity by default).
    """

    def __init__(
        self, inputs: int, outputs: int, stride: int, norm: NormOf, shortcut: nn.Module, scale: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.first = conv_norm(inputs, outputs, 3, stride, norm=norm)
        self.second = conv_norm(outputs, outputs, 3, norm=norm)
        self.scale = scale or nn.Identity()
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.scale(self.second(F.relu(self.first(x)))) + self.shortcut(x))


def projection(inputs: int, outputs: int, stride: int, norm: NormOf) -> nn.Module:
    """Return the identity shortcut if the shape does not change, else a 1x1 convolution and normalisation."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return conv_norm(inputs, outputs, 1, stride, norm=norm)


class ZeroPadded(nn.Module):
    """Shortcut without parameters: every `stride`-th pixel, zeros in new channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.missing = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, self.missing // 2, self.missing - self.missing // 2)) if self.missing else x


def residual_body(
    channels: int,
    widths: Sequence[int],
    strides: Sequence[int],
    blocks: int,
    norm: NormOf,
    block: Callable[[int, int, int], nn.Module],
) -> nn.Sequential:
    """Return a 3x3 stem and one stage of `blocks` blocks per width, averaged over the pixels: [B, widths[-1]].

    `block` makes a block from input channels, output channels and stride; a stage's stride applies to its first block.
    """
    layers: list[nn.Module] = [conv_norm(channels, widths[0], 3, norm=norm), nn.ReLU()]
    inputs = widths[0]
    for outputs, stride in zip(widths, strides, strict=True):
        for number in range(blocks):
            layers.append(block(inputs, outputs, stride if number == 0 else 1))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def narrow_resnet(name: str, shape: tuple[int, int, int], classes: int, blocks: int) -> Net:
    """Return the ResNet for CIFAR of He et al. 2016, Sec. 4.2, with three stages of `blocks` blocks; batch norm.

    Shortcuts have no parameters (option A); the weights of convolutions and classifier are Kaiming-normal.
    """
    require_larger_than(4, name, shape)

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        return Residual(inputs, outputs, stride, nn.BatchNorm2d, ZeroPadded(inputs, outputs, stride))

    body = residual_body(shape[0], (16, 32, 64), (1, 2, 2), blocks, nn.BatchNorm2d, block)
    net = Net(body, nn.Linear(64, classes))
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight)
    return net
