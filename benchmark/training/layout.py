"""Memory layout of a net on a device, and replacement of layers that are inaccurate, slow or not reproducible there."""

from __future__ import annotations

import torch
from torch import nn

from fedspan.benchmark.net import Net
from fedspan.benchmark.training import cpu_layers, cuda_layers


def lay_out(net: Net, device: torch.device, order: torch.memory_format) -> Net:
    """Move `net` to `device` and into memory `order`, in place, and replace layers; its function stays the same.

    On CPU, convolutions read and write channels last without reordering, which took a third of a MobileNetV2 step.
    """
    net = net.to(device, memory_format=order)  # type: ignore[call-overload]
    for module in net.modules():
        module.__class__ = _mended_on_cpu(module) if device.type == "cpu" else _mended_on_cuda(module)
    return net


def _mended_on_cpu(module: nn.Module) -> type[nn.Module]:
    emulated = not cpu_layers.has_bfloat16()
    if type(module) is nn.BatchNorm2d:
        return cpu_layers.BatchNorm2d
    if type(module) is nn.Conv2d and (emulated or (module.groups > 1 and module.stride != (1, 1))):
        return cpu_layers.RoundedConv2d
    if type(module) is nn.Linear and emulated:
        return cpu_layers.RoundedLinear
    return type(module)


def _mended_on_cuda(module: nn.Module) -> type[nn.Module]:
    return cuda_layers.AdaptiveAvgPool2d if type(module) is nn.AdaptiveAvgPool2d else type(module)


def built_in(net: Net) -> Net:
    """Return `net` with its CPU layers, which `torch.func` cannot trace, turned back into torch's own, in place."""
    originals = {
        cpu_layers.BatchNorm2d: nn.BatchNorm2d,
        cpu_layers.RoundedConv2d: nn.Conv2d,
        cpu_layers.RoundedLinear: nn.Linear,
    }
    for module in net.modules():
        module.__class__ = originals.get(type(module), type(module))
    return net
