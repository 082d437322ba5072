"""Sums over the clients of a round: all that the server learns, unless a method uses single updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedspan.benchmark.method import States
from fedspan.benchmark.training.local import ClientResult
from fedspan.benchmark.tree import Tree, nbytes


@dataclass
class RoundSums:
    """Running sums over the clients of a round, in float64: their order hardly ever shows in the float32 result.

    Means are weighted by `weights`, by client, or by numbers of images. Single updates are also kept in `updates`,
    unless it is None.
    """

    weights: Mapping[int, float] | None = None
    updates: dict[int, Tree] | None = None

    participants: int = 0
    samples: int = 0
    steps: int = 0
    images: int = 0
    loss: float = 0.0
    upload_bytes: int = 0
    weight: float = 0  # of all clients together
    _delta: Tree = field(default_factory=dict)
    _buffers: Tree = field(default_factory=dict)
    _uploads: States = field(default_factory=dict)
    _types: dict[str, torch.dtype] = field(default_factory=dict)

    def add(self, done: ClientResult) -> None:
        """Add one client's result: update and buffers multiplied by its weight, uploads unweighted."""
        weight = done.n if self.weights is None else self.weights[done.client]
        self.weight += weight
        self.participants += 1
        self.samples += done.n
        self.steps += done.steps
        self.images += done.images
        self.loss += done.loss * done.n
        _accumulate(self._delta, done.delta, weight)
        if self.updates is not None:
            self.updates[done.client] = done.delta
        _accumulate(self._buffers, done.buffers, weight)
        self.upload_bytes += done.sent_bytes
        for name, tree in done.uploads.items():
            sent = [*done.delta.values(), *(leaf for leaf in tree.values() if isinstance(leaf, Tensor))]
            device = sent[0].device if sent else torch.device("cpu")  # plain numbers go to the device of the tensors
            tensors = {path: _tensor(leaf, device) for path, leaf in tree.items()}
            self.upload_bytes += nbytes(tensors)
            _accumulate(self._uploads.setdefault(name, {}), tensors, 1)
            self._types |= {f"{name}/{path}": _wide(leaf) for path, leaf in tensors.items()}

    def add_lost(self, done: ClientResult) -> None:
        """Count the work of a client whose result is lost."""
        self.steps += done.steps
        self.images += done.images

    @property
    def _whole(self) -> float:
        return self.weight or 1  # nothing moves if all weights are zero

    def mean_delta(self, like: Tree) -> Tree:
        """Return the weighted mean update, in the types of `like`."""
        return {path: (leaf / self._whole).to(like[path].dtype) for path, leaf in self._delta.items()}

    def mean_buffers(self, like: Tree) -> Tree:
        """Return the weighted mean of the shared buffers, in the types of `like`."""
        return {path: (leaf / self._whole).to(like[path].dtype) for path, leaf in self._buffers.items()}

    def uploads(self, name: str) -> Tree:
        """Return a component's summed uploads; plain numbers, scalars and integers come back as float64."""
        return {p: leaf.to(self._types[f"{name}/{p}"]) for p, leaf in self._uploads.get(name, {}).items()}


def _tensor(leaf: Tensor | float, device: torch.device) -> Tensor:
    return torch.as_tensor(leaf, device=device, dtype=torch.float64 if isinstance(leaf, float) else None)


def _wide(leaf: Tensor) -> torch.dtype:
    return leaf.dtype if leaf.ndim and leaf.is_floating_point() else torch.float64


def _accumulate(into: Tree, tree: Tree, weight: float) -> None:
    for path, leaf in tree.items():
        if path in into:
            into[path].add_(leaf, alpha=weight)  # in float64
        else:
            into[path] = leaf.to(torch.float64, copy=True).mul_(weight)
