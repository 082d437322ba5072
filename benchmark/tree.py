"""Arithmetic over trees: a tree is a ``dict[str, Tensor]`` keyed by parameter path."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Tree = dict[str, Tensor]


def tree_map(function: Callable[..., Tensor], first: Mapping[str, Tensor], *rest: Mapping[str, Tensor]) -> Tree:
    """Apply `function` leaf by leaf; every tree must have the keys of the first."""
    return {path: function(leaf, *(tree[path] for tree in rest)) for path, leaf in first.items()}


def add(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tree:
    """Return ``a + b``."""
    return tree_map(torch.add, a, b)


def sub(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tree:
    """Return ``a - b``."""
    return tree_map(torch.sub, a, b)


def scale(a: Mapping[str, Tensor], factor: float | Tensor) -> Tree:
    """Return ``factor * a``."""
    return tree_map(lambda leaf: leaf * factor, a)


def zeros(a: Mapping[str, Tensor]) -> Tree:
    """Return a tree of zeros with the shapes and types of `a`."""
    return tree_map(torch.zeros_like, a)


def clone(a: Mapping[str, Tensor]) -> Tree:
    """Return a copy that shares no memory with `a`."""
    return tree_map(lambda leaf: leaf.detach().clone(), a)


def in_layout_of(like: Mapping[str, Tensor], a: Mapping[str, Tensor]) -> Tree:
    """Return the leaves of `a` at the paths of `like`, in the memory layout of `like`.

    The rounding of sums over a leaf depends on its layout, and kernels that update in place assume equal ones.
    """

    def laid_out(mine: Tensor, leaf: Tensor) -> Tensor:
        same = torch.empty_like(mine, device="meta").stride() == leaf.stride()
        return leaf if same else torch.empty_like(mine).copy_(leaf)

    return tree_map(laid_out, like, a)


def overwrite(into: Mapping[str, Tensor], by: Mapping[str, Tensor]) -> None:
    """Copy the leaves of `by` into those of `into`, which they may alias under other names."""
    theirs = {leaf.untyped_storage()._cdata for leaf in into.values()}
    moved = {path: leaf for path, leaf in by.items() if leaf is not into[path]}
    safe = [leaf.clone() if leaf.untyped_storage()._cdata in theirs else leaf for leaf in moved.values()]
    if moved:
        torch._foreach_copy_([into[path] for path in moved], safe)


def sqdist(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Tensor:
    """Return the squared Euclidean distance over all leaves of `a`, a scalar."""
    ours, theirs = ([tree[path].flatten() for path in a] for tree in (a, b))  # one vector: few kernels for small leaves
    return (torch.cat(ours) - torch.cat(theirs)).square().sum()


def sqnorm(a: Mapping[str, Tensor]) -> Tensor:
    """Return the squared Euclidean norm over all leaves, a float64 scalar."""
    return torch.stack([leaf.double().square().sum() for leaf in a.values()]).sum()


def prefixed(prefix: str, a: Mapping[str, Tensor]) -> Tree:
    """Return `a` with `prefix` before every name, so that several trees fit into one."""
    return {f"{prefix}/{path}": leaf for path, leaf in a.items()}


def under(prefix: str, a: Mapping[str, Tensor]) -> Tree:
    """Return the tree that `prefixed` put into `a`, under its original names."""
    return {path.removeprefix(f"{prefix}/"): leaf for path, leaf in a.items() if path.startswith(f"{prefix}/")}


def to_device(a: Mapping[str, Tensor], device: torch.device | str) -> Tree:
    """Return `a` on `device`."""
    return tree_map(lambda leaf: leaf.to(device), a)


def root(x: Tensor) -> Tensor:
    """Return the square roots of `x`, with the same bits on every processor.

    `torch.sqrt` calls MKL's vector functions, whose rounding depends on the CPU vendor under every setting. As with
    `torch.sqrt`, the gradient is finite for every positive `x` and undefined at 0.
    """
    # The derivative of rsqrt is proportional to its cube, which overflows for small x and vanishes for large x. Scaling
    # these by a power of 4 changes no digit of the root.
    largest = torch.finfo(x.dtype).max
    small, large = x < largest ** (-2 / 3), x > largest ** (2 / 3)
    twos = 3 * math.frexp(largest)[1] // 8
    up, down = (
        torch.ones_like(x).masked_fill(small, 2.0**power).masked_fill(large, 2.0**-power) for power in (2 * twos, -twos)
    )
    return (x * up).rsqrt().reciprocal() * down


def nbytes(a: Mapping[str, Tensor]) -> int:
    """Return the size of the leaves in bytes."""
    return sum(leaf.numel() * leaf.element_size() for leaf in a.values())


def finite(a: Mapping[str, Tensor]) -> bool:
    """Return whether every number in the tree is finite."""
    leaves = [leaf for leaf in a.values() if leaf.is_floating_point() and leaf.numel()]
    extremes = [torch.stack(torch.aminmax(leaf)) for leaf in leaves]  # one pass each; NaN propagates
    return not extremes or bool(torch.cat(extremes).isfinite().all())  # read once: each read synchronises CUDA


def digest(a: Mapping[str, Tensor]) -> str:
    """Return the sha256 digest of paths, types, shapes and bytes, in path order."""
    sha = hashlib.sha256()
    for path in sorted(a):
        leaf = a[path].detach().cpu().contiguous()
        sha.update(f"{path}|{leaf.dtype}|{tuple(leaf.shape)}|".encode())
        sha.update(leaf.flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()
