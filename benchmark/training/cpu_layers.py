"""Accurate and fast replacements for layers whose CPU kernels are inaccurate or slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS = 512  # minimum pixels per group, each group summed in one float


def has_bfloat16() -> bool:
    """Return whether this processor has bfloat16 arithmetic."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


class BatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation whose training statistics are as accurate channels-last as in the default format.

    The built-in kernel sums all pixels of a channel in one float; for 65,536 pixels the variance is off by 1e-5, which
    fifty layers turn into a gradient several times further from float64. Here the same kernel treats groups of pixels
    as separate channels, and the groups' moments are combined in float64: as fast, 100 times more accurate.
    """

    def forward(self, x: Tensor) -> Tensor:
        last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
        if not (self.training and self.affine and self.track_running_stats and self.momentum is not None and last):
            return super().forward(x)
        y, mean, var = _Normalise.apply(x, self.weight, self.bias, self.eps)
        with torch.no_grad():
            pixels = x.numel() // x.shape[1]
            if pixels < 2:
                raise ValueError(f"batch normalisation needs more than one value per channel, got {list(x.shape)}")
            self.running_mean.lerp_(mean, self.momentum)  # type: ignore[union-attr]
            self.running_var.lerp_(var * (pixels / (pixels - 1)), self.momentum)  # type: ignore[union-attr]
            self.num_batches_tracked.add_(1)  # type: ignore[union-attr]
        return y


class _Normalise(torch.autograd.Function):
    """(x [B, C, H, W], weight [C], bias [C], eps) -> (normalised x, mean [C], biased variance [C])."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        mean, var = moments(x)
        inverse = (var + eps).rsqrt().to(weight.dtype)
        mean, var = mean.to(weight.dtype), var.to(weight.dtype)
        y = torch.native_batch_norm(x, weight, bias, mean, var, False, 0.0, eps)[0]
        ctx.save_for_backward(x, weight, mean, inverse)
        ctx.eps = eps
        ctx.mark_non_differentiable(mean, var)
        return y, mean, var

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight, mean, inverse = ctx.saved_tensors
        dx, dweight, dbias = torch.ops.aten.native_batch_norm_backward(
            grads[0], x, weight, None, None, mean, inverse, True, ctx.eps, [True, True, True]
        )
        return dx, dweight, dbias, None


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance [C] per channel, float64, of x [B, C, H, W] in the channels-last format.

    bfloat16 numbers are summed in float32.
    """
    channels = x.shape[1]
    pixels = x.numel() // channels
    groups = 1
    while pixels % (2 * groups) == 0 and pixels // (2 * groups) >= ROWS:
        groups *= 2
    view = x.permute(0, 2, 3, 1).reshape(pixels // groups, groups * channels, 1, 1)
    # Given float32 running statistics, the kernel also returns statistics of bfloat16 numbers in float32.
    running = torch.zeros(groups * channels) if x.dtype == torch.bfloat16 else None
    means, variances = torch.batch_norm_update_stats(view, running, running, 0.0)
    means, variances = (part.view(groups, channels).double() for part in (means, variances))
    mean = means.mean(0)
    return mean, variances.mean(0) + (means - mean).square_().mean(0)


class Rounded(nn.Module):
    """A layer that under bfloat16 autocast rounds its inputs and outputs, and computes in float32.

    This equals bfloat16 arithmetic up to the order of its float32 sums. A processor without bfloat16 emulates each
    product, which takes twelve times as long as float32; one with bfloat16 lacks a kernel for the input gradient of a
    strided grouped convolution, which takes thirty times as long and returns a layout that slows earlier layers too.
    """

    compute: Callable[..., Tensor]
    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_autocast_enabled("cpu"):
            return self.compute(x, self.weight, self.bias)
        with torch.autocast("cpu", enabled=False):
            bias = None if self.bias is None else rounded(self.bias)
            return self.compute(rounded(x), rounded(self.weight), bias).to(torch.bfloat16)


class RoundedConv2d(Rounded, nn.Conv2d):
    """A convolution that rounds like `Rounded`."""

    compute = nn.Conv2d._conv_forward


class RoundedLinear(Rounded, nn.Linear):  # type: ignore[misc]
    """A linear layer that rounds like `Rounded`."""

    compute = staticmethod(F.linear)


def rounded(x: Tensor) -> Tensor:
    """Return x rounded to bfloat16, as float32; the backward pass rounds gradients in the same way."""
    return x.to(torch.bfloat16).float()
