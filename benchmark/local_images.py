"""The interface through which hooks use a client's training images."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol as Interface

from torch import Tensor

from fedspan.benchmark.tree import Tree

OfOutputs = Callable[[Tensor, Tensor], Tensor]  # (features, logits) -> scalar


class LocalImages(Interface):
    """Computations on a client's unaugmented training images, used by `Local`."""

    def labels(self) -> Tensor: ...

    def forward(self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]: ...

    def gradient(
        self,
        params: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        rows: Tensor | None,
        of: Collection[str] | None,
    ) -> tuple[Tensor, Tree, Tree]: ...

    def output_gradient(
        self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], function: OfOutputs, rows: Tensor | None
    ) -> Tree: ...
