"""Local SGD with torch's fused kernel, without the optimiser class, whose first use imports a compiler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedspan.benchmark.tree import Tree

if TYPE_CHECKING:
    from fedspan.benchmark.component import Step


class SGD:
    """SGD with momentum and weight decay, bit-identical to `torch.optim.SGD(fused=True)`.

    A parameter whose gradient is None is not updated. Call only `step`, which also clears the gradients.
    """

    def __init__(self, params: Sequence[Tensor], lr: float | Tensor, momentum: float, weight_decay: float) -> None:
        self.params = list(params)
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.buffers: list[Tensor] = []  # allocated at the first step, once activations are freed

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters, then clear their gradients."""
        if self.momentum and not self.buffers:
            self.buffers = [torch.zeros_like(leaf) for leaf in self.params]
        moved = [number for number, leaf in enumerate(self.params) if leaf.grad is not None]
        leaves = [self.params[number] for number in moved]
        grads = [leaf.grad for leaf in leaves]
        buffers = [self.buffers[number] for number in moved] if self.buffers else []
        update(leaves, grads, buffers, self.lr, self.momentum, self.weight_decay)  # type: ignore[arg-type]
        for leaf in leaves:
            leaf.grad = None


def update(
    leaves: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor],
    lr: float | Tensor,
    momentum: float,
    weight_decay: float,
) -> None:
    """Update `leaves` in place by one step of SGD; `buffers` hold the momentum, zeros before the first step."""
    if leaves and leaves[0].is_meta:  # the kernel does not support meta tensors; this allocates nothing either
        torch._foreach_add_(buffers or leaves, grads)
        return
    torch._fused_sgd_(
        leaves, grads, buffers, weight_decay=weight_decay, momentum=momentum, lr=lr,
        dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
    )  # fmt: skip


def stepped(
    weights: Mapping[str, Tensor], grads: Mapping[str, Tensor], momentum: Mapping[str, Tensor], step: Step
) -> tuple[Tree, Tree]:
    """Return (weights, momentum) of another model after one step of the protocol's SGD on `grads`.

    Weights without a gradient are not updated. Momentum restarts every round, as for the model in training.
    """
    p, later = step.protocol, 1.0 * (step.number > 0)
    moved, m = dict(weights), dict(momentum)
    for path, grad in grads.items():
        m[path] = p.momentum * (later * momentum[path]) + grad + p.weight_decay * weights[path]
        moved[path] = weights[path] - step.lr * m[path]
    return moved, m
