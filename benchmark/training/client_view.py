"""A client as hooks see it around local training: received trees, weights, own trees and unaugmented images."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedspan.benchmark import rng
from fedspan.benchmark.component import Local
from fedspan.benchmark.download import Download
from fedspan.benchmark.local_images import OfOutputs
from fedspan.benchmark.task import Images
from fedspan.benchmark.tree import Tree, clone

if TYPE_CHECKING:
    from fedspan.benchmark.method import States
    from fedspan.benchmark.training.local import LocalTrainer, Visit
    from fedspan.benchmark.training.state import State

Objective = Callable[[Tensor, Tensor, Tree, tuple[Tensor, Tensor]], Tensor]  # of images, labels, weights, outputs


def received(trainer: LocalTrainer, state: State, client: int) -> States:
    """Return the trees that a client receives from each component in round `state.round`."""
    broadcast = trainer.method.broadcast(state.server)
    if not trainer.method.sends_messages:
        return broadcast
    if client in state.messages:
        return state.messages[client]

    def download(name: str) -> Download:
        return Download(
            client=client,
            sent=state.sent,
            params=state.params,
            server=state.server[name],
            protocol=trainer.protocol,
            round=state.round,
            rng=rng.generator(trainer.data.seed, "message", name, state.round, client),
        )

    with torch.no_grad():
        return trainer.method.message(download, broadcast)


def views(
    trainer: LocalTrainer, hook: str, client: int, visit: Visit, params: Tree, buffers: Tree, steps: int = 0
) -> Callable[[str], Local]:
    """Return a factory of each component's view in `hook`, for a client with current `params` and `buffers`."""
    round, images = int(visit.round), ClientImages(trainer, client, visit)

    def local(name: str) -> Local:
        return Local(
            start=visit.start,
            params=params,
            buffers=buffers,
            steps=steps,
            n=trainer.data.size(client),
            mean_images=trainer.data.mean_images,
            counts=visit.counts,
            protocol=trainer.protocol,
            round=round,
            server=visit.broadcast[name],
            client=visit.states[name],
            rng=rng.generator(trainer.data.seed, hook, name, round, client),
            images=images,
        )

    return local


@dataclass(frozen=True)
class ClientImages:
    """A client's training images, behind a `Local`. Computation on them is metered as `hooks`."""

    trainer: LocalTrainer
    client: int
    visit: Visit

    def labels(self) -> Tensor:
        return self._training_images().y

    def forward(self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        trainer, found = self.trainer, []
        for x, _ in trainer.data.in_order(self._training_images(), trainer.data.evaluation_batch):
            with trainer.meter.step("hooks", f"forward {len(x)}"):
                found.append(trainer.evaluate_under(trainer.twin, {**params, **buffers}, x))
        features, logits = zip(*found, strict=True)
        return torch.cat(features), torch.cat(logits)

    def gradient(
        self,
        params: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        rows: Tensor | None,
        of: Collection[str] | None,
    ) -> tuple[Tensor, Tree, Tree]:
        def loss(x: Tensor, y: Tensor, leaves: Tree, outputs: tuple[Tensor, Tensor]) -> Tensor:
            step = self.trainer.step_view(x, y, self.visit, leaves, outputs)
            return self.trainer.method.loss(step, self.visit.broadcast, self.visit.states)

        self.trainer.net.train()
        return self._differentiated("gradient", loss, params, buffers, rows, of)

    def output_gradient(
        self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], function: OfOutputs, rows: Tensor | None
    ) -> Tree:
        def value(x: Tensor, y: Tensor, leaves: Tree, outputs: tuple[Tensor, Tensor]) -> Tensor:
            return function(*outputs)

        self.trainer.net.eval()
        _, grads, _ = self._differentiated("output gradient", value, params, buffers, rows, None)
        self.trainer.net.train()
        return grads

    def _differentiated(
        self,
        kind: str,
        objective: Objective,
        params: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        rows: Tensor | None,
        of: Collection[str] | None,
    ) -> tuple[Tensor, Tree, Tree]:
        """Return the objective, its gradient in the trainable weights among `of`, and the statistics afterwards."""
        trainer, images = self.trainer, self._training_images()
        taken = images if rows is None else images.take(rows.to(images.y.device))
        x = trainer.data.normalise(taken.x)
        leaves = clone(params)
        wanted = trainer.paths.trainable if of is None else trainer.paths.trainable.intersection(of)
        moving = {path: leaf.requires_grad_() for path, leaf in leaves.items() if path in wanted}
        statistics = clone(buffers)
        kind = " ".join((kind, str(len(x)), *(() if of is None else moving)))
        with torch.enable_grad(), trainer.meter.step("hooks", kind):
            outputs = trainer.outputs(trainer.net, {**leaves, **statistics}, x)
            value = objective(x, taken.y, leaves, outputs)
            grads = torch.autograd.grad(value, list(moving.values()), materialize_grads=True) if moving else ()
        return value.detach(), dict(zip(moving, grads, strict=True)), statistics

    def _training_images(self) -> Images:
        data = self.trainer.data
        return data.train.take(data.train_indices(self.client).to(data.device))
