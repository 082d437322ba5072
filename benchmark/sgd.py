"""Local SGD: torch's own fused kernel, without the wrapper whose first use imports a compiler."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class SGD:
    """SGD with momentum and weight decay, bit for bit `torch.optim.SGD(fused=True)`.

    A parameter whose gradient is None stays where it is. Call `step` only; gradients are dropped there.
    """

    def __init__(self, params: Sequence[Tensor], lr: float, momentum: float, weight_decay: float) -> None:
        self.params = list(params)
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self._buffers: dict[int, Tensor] = {}

    @torch.no_grad()
    def step(self) -> None:
        """Move the parameters by their gradients, then drop the gradients."""
        moved = [(number, leaf) for number, leaf in enumerate(self.params) if leaf.grad is not None]
        fresh = [pair for pair in moved if self.momentum and pair[0] not in self._buffers]
        started = [pair for pair in moved if not fresh or pair[0] in self._buffers]
        for first, group in ((True, fresh), (False, started)):
            if group:
                self._update(group, first)

    def _update(self, group: list[tuple[int, Tensor]], first: bool) -> None:
        leaves = [leaf for _, leaf in group]
        buffers: list[Tensor] = []
        if self.momentum:
            if first:
                self._buffers |= {number: torch.empty_like(leaf) for number, leaf in group}
            buffers = [self._buffers[number] for number, _ in group]
        grads = [leaf.grad for leaf in leaves]
        update(leaves, grads, buffers, self.lr, self.momentum, self.weight_decay, first)  # type: ignore[arg-type]
        for leaf in leaves:
            leaf.grad = None


def update(
    leaves: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor],
    lr: float,
    momentum: float,
    weight_decay: float,
    first: bool = False,
) -> None:
    """Move `leaves` in place by one step of SGD; `buffers` hold the momentum and are written, if `first` not read."""
    torch._fused_sgd_(
        leaves, grads, buffers, weight_decay=weight_decay, momentum=momentum, lr=lr,
        dampening=0.0, nesterov=False, maximize=False, is_first_step=first,
    )  # fmt: skip
