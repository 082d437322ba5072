"""The components' penalties during local training, watched in a training that leaves no trace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedspan.benchmark.component import Step
from fedspan.benchmark.fleet import NO_TURNS, WHOLE, Turns, lost
from fedspan.benchmark.method import Method, States
from fedspan.benchmark.training.local import LocalTrainer
from fedspan.benchmark.training.meter import Meter
from fedspan.benchmark.training.state import State

Penalties = dict[str, dict[str, list[float]]]  # component -> client -> mean, without coefficient, of each local epoch


class _Watched:
    """A method that notes its penalties; everything else is the method's."""

    def __init__(self, method: Method, params: Any) -> None:
        self._method, self._params = method, params
        self.noted: list[tuple[int, dict[str, float]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def objective(self, step: Step, server: States, client: States) -> Tensor:
        if step.params is self._params:  # not at other weights, where a method may ask for a gradient as well
            with torch.no_grad():
                found = self._method.penalties(step, server, client)
            self.noted.append((len(step.y), {name: float(value) for name, value in found.items()}))
        return self._method.objective(step, server, client)


def watch(trainer: LocalTrainer, state: State, clients: Sequence[int], turns: Turns = NO_TURNS) -> Penalties:
    """Return the penalties of the round that begins at `state`.

    The clients train as they are about to, keyed randomness and all, and what comes out is dropped: neither `state`
    nor the trainer's method and meter change. A client that diverges and of which nothing arrives has no penalties.
    """
    method, meter, known = trainer.method, trainer.meter, trainer.lost
    found: Penalties = {}
    try:
        trainer.meter = Meter()
        trainer.lost = lost(clients, turns)
        for client in clients:
            watched: Any = _Watched(method, trainer.params)
            trainer.method = watched
            trainer.train(state, client, turns.get(client, WHOLE).steps)
            images = sum(trainer.data.batch_sizes(trainer.data.size(client)))
            for name, means in _by_epoch(watched.noted, images).items():
                if all(map(math.isfinite, means)):
                    found.setdefault(name, {})[str(client)] = means
    finally:
        trainer.method, trainer.meter, trainer.lost = method, meter, known
    return found


def _by_epoch(noted: Sequence[tuple[int, dict[str, float]]], images: int) -> dict[str, list[float]]:
    """Return the image-weighted mean of each epoch of `images` images; the last one may have fewer."""
    sums: dict[str, list[float]] = {}
    seen = 0
    for count, values in noted:
        epoch = seen // images
        for name, value in values.items():
            means = sums.setdefault(name, [])
            if len(means) <= epoch:
                means.append(0.0)
            means[epoch] += value * count / images
        seen += count
    if rest := seen % images:  # the last epoch of a client that does not finish
        for means in sums.values():
            means[-1] *= images / rest
    return sums
