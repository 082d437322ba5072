"""The components' penalties during local training, watched in a training that leaves no trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedspan.benchmark.component import Step
from fedspan.benchmark.method import Method, States
from fedspan.benchmark.training.local import LocalTrainer
from fedspan.benchmark.training.meter import Meter
from fedspan.benchmark.training.state import Row, State

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


def watch(trainer: LocalTrainer, state: State, clients: Sequence[int]) -> Penalties:
    """Return the penalties of the round that begins at `state`.

    The clients train as they are about to, keyed randomness and all, and what comes out is dropped: neither `state`
    nor the trainer's method and meter change.
    """
    found: Penalties = {}
    calls = [(trainer, state, client, state.rows_of(client)) for client in clients]
    costs = [float(trainer.data.size(client)) for client in clients]
    for client, noted in zip(clients, trainer.each(state, _watch_client, calls, costs), strict=True):
        for name, means in noted.items():
            found.setdefault(name, {})[str(client)] = means
    return found


def _watch_client(trainer: LocalTrainer, state: State, client: int, rows: dict[int, Row]) -> dict[str, list[float]]:
    """Return the penalties of one client, by component and epoch."""
    method, meter = trainer.method, trainer.meter
    watched: Any = _Watched(method, trainer.params)
    try:
        trainer.meter, trainer.method = Meter(flops_of_step=dict(meter.flops_of_step)), watched
        done = trainer.train(state.holding(rows), client)
    finally:
        trainer.method, trainer.meter = method, meter
    return _by_epoch(watched.noted, done.images // trainer.protocol.local_epochs)


def _by_epoch(noted: Sequence[tuple[int, dict[str, float]]], images: int) -> dict[str, list[float]]:
    """Return the image-weighted mean of each epoch of `images` images."""
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
    return sums
