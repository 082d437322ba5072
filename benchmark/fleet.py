"""Fleets: how clients differ beyond their data, as the outcome of each client's work in a round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from fedspan.benchmark import rng
from fedspan.benchmark.registry import Plugin, decorator


@dataclass(frozen=True)
class Work:
    """The work of one client in a round.

    The client receives `down` bytes, takes `steps` local SGD steps, `steps_per_epoch` in each epoch over its own
    images, and sends `up` bytes.
    """

    client: int
    steps: int
    steps_per_epoch: int
    down: int
    up: int


@dataclass(frozen=True)
class Turn:
    """The outcome of a client's work in a round.

    The client takes the first `steps` of its local steps (None: all of them). Its update then `arrives` at the server
    or is lost. `seconds` is the simulated time that the server waits for it: None in a fleet without a clock, and for a
    lost update that is not waited for.
    """

    steps: int | None = None
    arrives: bool = True
    seconds: float | None = None


WHOLE = Turn()

Turns = Mapping[int, Turn]  # of a round, by client; without an entry, a client takes all its steps and arrives
NO_TURNS: Turns = MappingProxyType({})


def lost(clients: Iterable[int], turns: Turns) -> frozenset[int]:
    """Return the clients whose updates are lost."""
    return frozenset(client for client in clients if not turns.get(client, WHOLE).arrives)


@dataclass(frozen=True)
class Draws:
    """Keyed generators for the draws of a round (from 0), which depend only on the cell's seed and their names."""

    seed: int
    round: int

    def of_client(self, purpose: str, client: int) -> np.random.Generator:
        """Return the generator for a client's lasting properties, the same in every round."""
        return rng.numpy_generator(self.seed, f"fleet client {purpose}", client)

    def of_round(self, purpose: str) -> np.random.Generator:
        """Return the generator for draws shared by all clients of this round."""
        return rng.numpy_generator(self.seed, f"fleet round {purpose}", self.round)

    def of_visit(self, purpose: str, client: int) -> np.random.Generator:
        """Return the generator for draws about one client in this round."""
        return rng.numpy_generator(self.seed, f"fleet visit {purpose}", self.round, client)


@dataclass(frozen=True)
class Fleet(Plugin):
    """Base of fleet plugins; by default every client takes all its steps and every update arrives."""

    def turns(self, work: Sequence[Work], draws: Draws) -> Sequence[Turn]:
        """Return the turn of each client in a round, in the order of `work`.

        The computation of a lost client is counted but otherwise discarded: the server receives nothing, and the client
        keeps its previous state. A round in which nothing arrives leaves the model unchanged, unless a component acts
        in such rounds (`Component.every_round` or `privacy`).
        """
        return [WHOLE] * len(work)

    @property
    def acts(self) -> bool:
        """Whether the fleet changes anything; if not, it is not part of the cell key."""
        return type(self).turns is not Fleet.turns


fleet = decorator("fleet")
