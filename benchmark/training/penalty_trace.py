"""The components' penalties during local training, recorded in a dry run without side effects."""

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

Penalties = dict[str, dict[str, list[float]]]  # component -> client -> mean per local epoch, without coefficient


class _PenaltyRecorder:
    """Wrapper of a method that records its penalties and delegates everything else."""

    def __init__(self, method: Method, params: Any) -> None:
        self._method, self._params = method, params
        self.noted: list[tuple[int, dict[str, float]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def objective(self, step: Step, server: States, client: States) -> Tensor:
        if step.params is self._params:  # skip gradients that a method requests at other weights
            with torch.no_grad():
                found = self._method.penalties(step, server, client)
            self.noted.append((len(step.y), {name: float(value) for name, value in found.items()}))
        return self._method.objective(step, server, client)


def trace_penalties(trainer: LocalTrainer, state: State, clients: Sequence[int], turns: Turns = NO_TURNS) -> Penalties:
    """Return the penalties of the round that begins at `state`.

    The clients train exactly as in the coming round, with the same keyed randomness, and the results are dropped:
    neither `state` nor the trainer's method and meter change. A lost client that diverges has no penalties.
    """
    method, meter, known = trainer.method, trainer.meter, trainer.lost
    found: Penalties = {}
    try:
        trainer.meter = Meter()
        trainer.lost = lost(clients, turns)
        for client in clients:
            watched: Any = _PenaltyRecorder(method, trainer.params)
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
    """Return the image-weighted mean of each epoch of `images` images; the last epoch may have fewer."""
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
    if rest := seen % images:  # incomplete last epoch of a client that was cut short
        for means in sums.values():
            means[-1] *= images / rest
    return sums
