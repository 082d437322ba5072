"""How clients differ in more than data: what a fleet makes of each client's part in a round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from fedspan.benchmark import rng
from fedspan.benchmark.registry import Plugin, decorator


@dataclass(frozen=True)
class Work:
    """What a round asks of one of its clients.

    It receives `down` bytes, takes `steps` local SGD steps, `steps_per_epoch` in each epoch over its own images, and
    sends `up` bytes.
    """

    client: int
    steps: int
    steps_per_epoch: int
    down: int
    up: int


@dataclass(frozen=True)
class Turn:
    """What becomes of a client's part in a round.

    It takes the first `steps` of its local steps (None: all of them). What it then sends `arrives` at the server or is
    lost. `seconds` is the simulated time that the server waits for it, None in a fleet that has no clock.
    """

    steps: int | None = None
    arrives: bool = True
    seconds: float | None = None


WHOLE = Turn()

Turns = Mapping[int, Turn]  # of a round, by client; one that is not in it takes all its steps and arrives
NO_TURNS: Turns = MappingProxyType({})


def lost(clients: Iterable[int], turns: Turns) -> frozenset[int]:
    """Return the clients of which nothing arrives."""
    return frozenset(client for client in clients if not turns.get(client, WHOLE).arrives)


@dataclass(frozen=True)
class Draws:
    """Keyed generators for the draws of a round (from 0): they depend on the cell's seed and their names alone."""

    seed: int
    round: int

    def of_client(self, purpose: str, client: int) -> np.random.Generator:
        """Return the generator of a client's lasting properties: in every round the same."""
        return rng.numpy_generator(self.seed, f"fleet client {purpose}", client)

    def of_round(self, purpose: str) -> np.random.Generator:
        """Return the generator of what concerns all clients of this round."""
        return rng.numpy_generator(self.seed, f"fleet round {purpose}", self.round)

    def of_visit(self, purpose: str, client: int) -> np.random.Generator:
        """Return the generator of what happens to a client in this round."""
        return rng.numpy_generator(self.seed, f"fleet visit {purpose}", self.round, client)


@dataclass(frozen=True)
class Fleet(Plugin):
    """Base of the fleet plugins. As it is, every client takes all its steps and everything arrives."""

    def turns(self, work: Sequence[Work], draws: Draws) -> Sequence[Turn]:
        """Return the turn of each client of a round, in the order of `work`.

        What a lost client computed is counted and nothing else of it is left: the server gets nothing, and the client
        keeps the memory that it had. A round of which nothing arrives leaves the model as it is.
        """
        return [WHOLE] * len(work)

    @property
    def acts(self) -> bool:
        """Whether it changes anything; one that does not is no part of a cell's key."""
        return type(self).turns is not Fleet.turns


fleet = decorator("fleet")
