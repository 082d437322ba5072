"""The one shape of a model: a body that makes representations and a head that classifies them."""

from __future__ import annotations

import copy
from collections.abc import Mapping

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


class Twin:
    """A second net of the same kind, in evaluation mode, that computes with weights lent to it.

    Lending copies no weight and turns no module's mode: on a small net either costs more than the forward pass.
    """

    def __init__(self, net: Net) -> None:
        self.net = copy.deepcopy(net).eval()
        modules = owners(self.net)
        names = {path: path.rpartition(".")[2] for path in modules}
        self.places = {
            path: (module._parameters if names[path] in module._parameters else module._buffers, names[path])
            for path, module in modules.items()
        }

    def under(self, leaves: Mapping[str, Tensor]) -> Net:
        """Return the net with `leaves`: every parameter and floating-point buffer, by path."""
        for path, leaf in leaves.items():
            place, name = self.places[path]
            place[name] = leaf  # type: ignore[assignment]
        return self.net
