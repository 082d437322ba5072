"""The reference executor: one client after another, in the order of their numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import torch

from fedspan.benchmark.net import buffers_of, parameters_of
from fedspan.benchmark.training.executors.round_sums import RoundSums
from fedspan.benchmark.training.local import Finished, LocalTrainer
from fedspan.benchmark.training.state import State
from fedspan.benchmark.tree import Tree, clone


class Loop:
    """Trains the sampled clients in sequence in one net."""

    name = "loop"
    together = 1  # clients that train at a time: in other groups they might round differently, or be slower

    def __init__(self, trainer: LocalTrainer) -> None:
        self.trainer = trainer

    def sums(self, clients: Sequence[int]) -> RoundSums:
        """Return the empty sums of a round, with the weights of `clients` where the method has weights of its own."""
        data, method = self.trainer.data, self.trainer.method
        updates: dict[int, Tree] | None = {} if method.sees_updates else None
        if not method.has_weights:
            return RoundSums(updates=updates)
        counts = torch.stack([data.counts(client).double() for client in clients])
        weights = method.weights(counts, sum(data.size(client) for client in range(data.clients)))
        return RoundSums(dict(zip(clients, weights.tolist(), strict=True)), updates)

    def run(
        self, state: State, clients: Sequence[int], keep: Collection[int] = (), tick: Callable[[], None] = lambda: None
    ) -> tuple[RoundSums, dict[int, Tree]]:
        """Train `clients` from `state` and remember their rows in it.

        Returns the sums and, for the clients in `keep`, their local weights and buffers. `tick` is called
        after each client.
        """
        sums, kept = self.sums(clients), {}
        for done, model in self.each(state, clients, keep, tick):
            if model is not None:
                kept[done.client] = model
            state.remember(done.client, done.row)
            sums.add(done)
            del done, model  # its update need not stay in memory while the next client trains
        return sums, kept

    def each(
        self, state: State, clients: Sequence[int], keep: Collection[int] = (), tick: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[Finished, Tree | None]]:
        """Yield what each client hands back, in the order of their numbers, and its weights and buffers if in `keep`.

        `state` stays as it is.
        """
        for client in sorted(clients):
            done = self.trainer.train(state, client)
            model = clone(parameters_of(self.trainer.net) | buffers_of(self.trainer.net)) if client in keep else None
            tick()
            yield done, model
            del done, model
