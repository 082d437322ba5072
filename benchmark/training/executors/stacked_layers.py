"""Stackable layers: convolutions as matrix products, and batch norm of contiguous images."""

from __future__ import annotations

import copy
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedspan.benchmark.net import Net
from fedspan.benchmark.training.layout import built_in


def stackable(net: Net, device: torch.device) -> Net:
    """Return a copy of `net` for `torch.func.vmap`: built-in layers, and on CPU convolutions over patches.

    On CPU, a stacked convolution would be a grouped one, which is slower than one convolution after another.
    """
    net = built_in(copy.deepcopy(net))
    for module in net.modules():
        if device.type == "cpu" and type(module) is nn.Conv2d and PatchConv2d.can_be(module):
            module.__class__ = PatchConv2d
        if device.type != "cpu" and type(module) is nn.BatchNorm2d:
            module.__class__ = ContiguousBatchNorm2d
    return net


class ContiguousBatchNorm2d(nn.BatchNorm2d):
    """Batch norm of contiguous images: cuDNN's queries the memory format, and `torch.func.vmap` has only this one."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.contiguous())


class PatchConv2d(nn.Conv2d):
    """An ungrouped 2d convolution with zero padding as one matrix product over all patches of a batch."""

    @staticmethod
    def can_be(conv: nn.Conv2d) -> bool:
        """Return whether this class can compute `conv`."""
        plain = conv.groups == 1 and conv.padding_mode == "zeros" and conv.dilation == (1, 1)
        return plain and not isinstance(conv.padding, str)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        (kernel_y, kernel_x), (stride_y, stride_x) = self.kernel_size, self.stride
        pad_y, pad_x = map(int, self.padding)
        height, width = height + 2 * pad_y, width + 2 * pad_x
        out_y, out_x = (height - kernel_y) // stride_y + 1, (width - kernel_x) // stride_x + 1
        index = patch_index(height, width, kernel_y, kernel_x, stride_y, stride_x)
        pixels = F.pad(x.permute(0, 2, 3, 1), (0, 0, pad_x, pad_x, pad_y, pad_y)).reshape(batch, -1, channels)
        patches = pixels.index_select(1, index.to(x.device)).reshape(batch * out_y * out_x, -1)
        weight = self.weight.permute(2, 3, 1, 0).reshape(-1, self.out_channels)
        y = patches @ weight if self.bias is None else torch.addmm(self.bias, patches, weight)
        return y.view(batch, out_y, out_x, -1).permute(0, 3, 1, 2)


@cache
def patch_index(height: int, width: int, kernel_y: int, kernel_x: int, stride_y: int, stride_x: int) -> Tensor:
    """Return the pixels of a padded image that each patch reads, int64 [patches * kernel_y * kernel_x]."""
    number = torch.arange(height * width).view(height, width)
    return number.unfold(0, kernel_y, stride_y).unfold(1, kernel_x, stride_x).reshape(-1)
