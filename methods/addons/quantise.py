"""QSGD quantisation."""

from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedspan.benchmark.component import Component, Local, Wire, addon
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import fixed
from fedspan.benchmark.tree import Tree, root


@addon("quantise")
class Quantise(Component):
    """Alistarh et al. 2017 (NeurIPS), Sec. 3.1, applied to updates: unbiased random rounding to few levels.

    Each tensor v of the update becomes ``norm(v) sign(v) l / s`` with s levels, ``s = 2^(bits-1) - 1``; l is
    ``s |v| / norm(v)`` rounded up or down at random so that its mean is exact (Eq. 4). Each number is sent as its sign
    and level in `bits` bits, each tensor with its norm. The norm is the largest magnitude, as in the paper's
    experiments (Sec. 4), or the Euclidean length, as in its theory (``l2``). The paper uses Elias coding of the levels,
    in buckets; here the width is fixed and each tensor is one bucket. Zeros, such as those left by top-k, stay 0.
    """

    title = "QSGD"
    summary = "Clients round their updates to a few levels, stochastically and without bias."
    papers = ("alistarh2017",)
    wording = {"norm": {"l2": "by length"}}

    bits: Annotated[int, fixed("it sets the traffic")] = 8
    norm: Literal["max", "l2"] = "max"

    def __post_init__(self) -> None:
        require(2 <= self.bits <= 16, "addon.quantise.bits", "must lie in [2, 16]", self.bits)

    def client_end(self, delta: Tree, local: Local) -> tuple[Tree, Tree, Tree]:
        return {path: self._rounded(leaf, local.rng) for path, leaf in delta.items()}, {}, {}

    def wire(self, size: Wire, delta: Tree, local: Local) -> Wire:
        return replace(size, bits=self.bits, extra=size.extra + len(delta) * size.bits)

    def _rounded(self, v: Tensor, rng: torch.Generator) -> Tensor:
        levels = 2 ** (self.bits - 1) - 1
        length = v.abs().max() if self.norm == "max" else root(v.square().sum().clamp(min=torch.finfo(v.dtype).tiny))
        unit = length + (length == 0).to(v)  # a tensor of zeros is divided by 1, and stays
        draws = torch.rand(v.shape, generator=rng, dtype=v.dtype).to(v)
        level = (levels * (v.abs() / unit) + draws).floor().clamp(max=levels)
        return unit * v.sign() * level / levels
