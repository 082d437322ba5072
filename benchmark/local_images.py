"""The interface through which hooks use a client's training images."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol as Interface

from torch import Tensor

from fedspan.benchmark.tree import Tree

OfOutputs = Callable[[Tensor, Tensor], Tensor]  # (features, logits) -> scalar


class LocalImages(Interface):
    """Computations on a client's n unaugmented training images, used by `Local`.

    `rows` are the indices of the images to use; None means all.
    """

    def labels(self) -> Tensor:
        """Return the labels [n]."""

    def forward(self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return (features [n, d], logits [n, classes]) in evaluation mode."""

    def gradient(
        self,
        params: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        rows: Tensor | None,
        of: Collection[str] | None,
    ) -> tuple[Tensor, Tree, Tree]:
        """Return the loss, its gradient in the trainable weights among `of`, and the statistics afterwards."""

    def output_gradient(
        self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], function: OfOutputs, rows: Tensor | None
    ) -> Tree:
        """Return the gradient of ``function(features, logits)`` in the trainable weights, in evaluation mode."""
