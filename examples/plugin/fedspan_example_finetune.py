"""Fine-tuning of whole models at clients, an example of the hook `own`."""

from typing import Annotated

import torch

from fedspan.benchmark.component import Component, Local, addon
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import fixed, log
from fedspan.benchmark.tree import Tree


@addon("finetune")
class FineTune(Component):
    """Wang et al. 2019 (arXiv:1910.10252): after training each client fine-tunes the model on its own images.

    Plain SGD on all weights, without augmentation; the stage ``personalised`` scores the result at each client.
    """

    title = "Fine-tuning"
    summary = "After training each client fine-tunes the whole model on its own images."

    epochs: Annotated[int, fixed("it sets the compute")] = 1
    batch_size: Annotated[int, fixed("it sets the compute")] = 32
    lr: Annotated[float, log(1e-4, 1e-1, source="ours")] = 0.01
    neutral = {"epochs": 0}

    def __post_init__(self) -> None:
        require(self.epochs >= 0, "addon.finetune.epochs", "must not be negative", self.epochs)
        require(self.batch_size >= 1, "addon.finetune.batch_size", "must be at least 1", self.batch_size)
        require(self.lr > 0, "addon.finetune.lr", "must be positive", self.lr)

    @property
    def idle(self) -> frozenset[str]:
        return frozenset({"own"} if self.epochs == 0 else ())

    def own(self, params: Tree, local: Local) -> Tree:
        weights, statistics = dict(params), dict(local.buffers)
        for _ in range(self.epochs):
            for rows in torch.randperm(local.n, generator=local.rng).split(self.batch_size):
                grads, statistics = local.learn_at(weights, statistics, rows)
                weights |= {path: weights[path] - self.lr * grad for path, grad in grads.items()}
        return weights | statistics
