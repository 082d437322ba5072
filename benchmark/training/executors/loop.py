"""The reference executor: one client after another, in numerical order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from fedspan.benchmark.fleet import NO_TURNS, WHOLE, Turn, Turns, lost
from fedspan.benchmark.training.executors.round_sums import RoundSums
from fedspan.benchmark.training.local import ClientResult, LocalTrainer
from fedspan.benchmark.training.state import State
from fedspan.benchmark.tree import Tree

Trained = tuple[ClientResult, Tree | None]  # a client's result, and its weights and buffers if they are kept


def no_tick() -> None:
    """Do nothing: the default `tick`."""


@dataclass(frozen=True)
class RoundClients:
    """Clients that train in a round, in numerical order, and their turns.

    For clients in `keep` the local weights and buffers are returned too; `tick` is called after each client.
    """

    clients: Sequence[int]
    keep: Collection[int] = ()
    turns: Turns = field(default_factory=dict)
    tick: Callable[[], None] = no_tick

    @property
    def lost(self) -> frozenset[int]:
        """The clients whose results never arrive."""
        return lost(self.clients, self.turns)

    def part(self, clients: Sequence[int]) -> RoundClients:
        """Return the visits of a subset of clients, ready to be sent to another process, with the default `tick`."""
        turns = {client: self.turns[client] for client in clients if client in self.turns}
        return RoundClients(clients, [client for client in clients if client in self.keep], turns)

    def turn(self, client: int) -> Turn:
        """Return a client's turn."""
        return self.turns.get(client, WHOLE)


class Loop:
    """Executor that trains the sampled clients in sequence in one net."""

    name = "loop"

    def __init__(self, trainer: LocalTrainer) -> None:
        self.trainer = trainer

    def sums(self, clients: Sequence[int], turns: Turns = NO_TURNS) -> RoundSums:
        """Return the empty sums of a round, with weights of the arriving clients if the method defines its own."""
        data, method = self.trainer.data, self.trainer.method
        updates: dict[int, Tree] | None = {} if method.sees_updates else None
        clients = [client for client in clients if turns.get(client, WHOLE).arrives]
        if not method.has_weights or not clients:
            return RoundSums(updates=updates)
        counts = torch.stack([data.counts(client).double() for client in clients])
        weights = method.weights(counts, sum(data.size(client) for client in range(data.clients)))
        return RoundSums(dict(zip(clients, weights.tolist(), strict=True)), updates)

    def run(
        self,
        state: State,
        clients: Sequence[int],
        keep: Collection[int] = (),
        tick: Callable[[], None] = no_tick,
        turns: Turns = NO_TURNS,
    ) -> tuple[RoundSums, dict[int, Tree]]:
        """Train `clients` from `state`, each for its turn, and store the rows of arriving clients in `state`.

        Returns the sums and, for the clients in `keep`, their local weights and buffers. `tick` is called
        after each client.
        """
        sums, kept = self.sums(clients, turns), {}
        visits = RoundClients(sorted(clients), keep, turns, tick)
        for done, model in self.each(state, visits):
            if model is not None:
                kept[done.client] = model
            self._take(state, sums, done, visits.turn(done.client))
            del done, model  # free their memory before the next client trains
        return sums, kept

    def each(self, state: State, visits: RoundClients) -> Iterator[Trained]:
        """Train the clients of `visits` and yield each result, in numerical order.

        A row and a kept model stay valid; tensors to be summed may be valid only until the next result is requested.
        """
        self.trainer.lost = visits.lost
        for client in visits.clients:
            yield self._train(state, client, client in visits.keep, visits.turn(client).steps)
            visits.tick()

    def _train(self, state: State, client: int, keep: bool, steps: int | None) -> Trained:
        done = self.trainer.train(state, client, steps)
        return done, self.trainer.copy() if keep else None

    def together(self, clients: int, workers: int) -> int:
        """Return how many of a round's `clients` each of several `workers` gets at a time."""
        return 1

    @staticmethod
    def _take(state: State, sums: RoundSums, done: ClientResult, turn: Turn) -> None:
        """Add a client's result; a lost one counts only as work, and its client keeps its previous row."""
        if turn.arrives:
            state.remember(done.client, done.row)
            sums.add(done)
        else:
            sums.add_lost(done)
