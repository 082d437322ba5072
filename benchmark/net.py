"""The one shape of a model: a body that makes representations and a head that classifies them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Net(nn.Module):
    """``forward(x) -> (features, logits)``: x is [B, C, H, W], features [B, d], logits [B, classes].

    The representation (the papers' z) is what the head reads. `body` must return one row per image.
    """

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return features, self.head(features)


class Unit(nn.Module):
    """Scale each row to unit Euclidean length."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=1)


def one_hot(labels: Tensor, classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return [B, classes] indicators of integer labels [B]; traceable by `torch.func`."""
    return (labels[:, None] == torch.arange(classes, device=labels.device)).to(dtype)


def parameters_of(net: nn.Module) -> dict[str, Tensor]:
    """Return the live parameters by path."""
    return dict(net.named_parameters())


def buffers_of(net: nn.Module) -> dict[str, Tensor]:
    """Return the live floating-point buffers by path (normalisation statistics; step counters are no state)."""
    return {path: buffer for path, buffer in net.named_buffers() if buffer.is_floating_point()}


def owners(net: nn.Module) -> dict[str, nn.Module]:
    """Map the path of each parameter and buffer to the module that owns it."""
    return {
        f"{prefix}.{name}" if prefix else name: module
        for prefix, module in net.named_modules()
        for name in (*module._parameters, *module._buffers)
    }
