"""Deterministic replacements for layers whose GPU kernels are not reproducible."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class AdaptiveAvgPool2d(nn.AdaptiveAvgPool2d):
    """Average pooling to a fixed size whose gradient is summed in one order.

    In the built-in kernel, threads add to a pixel shared by several windows in arbitrary order.
    """

    def forward(self, x: Tensor) -> Tensor:
        size = self.output_size if isinstance(self.output_size, tuple) else (self.output_size, self.output_size)
        for axis, length in zip((-2, -1), size, strict=True):
            x = pooled(x, x.shape[axis] if length is None else length, axis)
        return x


def pooled(x: Tensor, length: int, axis: int) -> Tensor:
    """Return the means of `length` windows along an axis, the same windows as in `torch.nn.AdaptiveAvgPool1d`."""
    whole = x.shape[axis]
    if whole == length:
        return x
    windows = ((part * whole // length, -(-(part + 1) * whole // length)) for part in range(length))
    return torch.stack([x.narrow(axis, first, end - first).mean(axis) for first, end in windows], axis)
