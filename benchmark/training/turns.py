"""Turns of a round under a fleet: each client's number of steps, whether its result arrives, and its time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from fedspan.benchmark.errors import Incompatible, UserError
from fedspan.benchmark.fleet import NO_TURNS, Draws, Fleet, Turn, Turns, Work
from fedspan.benchmark.returned import described, refusal, repeatable, shown
from fedspan.benchmark.training.executors.round_sums import RoundSums
from fedspan.benchmark.training.local import LocalTrainer
from fedspan.benchmark.training.meter import Meter
from fedspan.benchmark.training.state import State
from fedspan.benchmark.training.traffic import bytes_beside_model, download_bytes

LONGEST = 1e12  # seconds of a simulated round, about 30,000 years


class FleetRunner:
    """The fleet of one run: requests the turns of every round and validates them."""

    def __init__(self, fleet: Fleet, trainer: LocalTrainer, seed: int) -> None:
        if fleet.acts and (one := trainer.method.centraliser):
            raise Incompatible(
                f"'{one.name}' trains on all images in one place, where fleet={fleet.name} means nothing"
            )
        self.fleet, self.trainer, self.seed = fleet, trainer, seed
        # Bytes that follow from shapes, kept because a trained model lacks the server's trees.
        self._uploads: dict[bool, int] = {}  # of one client, by whether the round is in the warm-up
        self._beside: int | None = None  # received by one client from components

    def turns(self, state: State, clients: Sequence[int]) -> Turns:
        """Return the clients' turns in the current round of `state`; raise `HookError` for invalid ones."""
        if not self.fleet.acts:
            return NO_TURNS
        if self._beside is None:
            self._beside = bytes_beside_model(self.trainer, state)
        downs = download_bytes(self.trainer, state, clients, self._beside)
        work = [self._work(state, client, down) for client, down in zip(clients, downs, strict=True)]
        try:
            with repeatable(self.fleet, "turns", "draw from `draws`"):
                found = self.fleet.turns(work, Draws(self.seed, state.round))
        except OverflowError as error:
            raise UserError(f"fleet={self.fleet.label()}: its settings are out of range ({error})") from error
        return dict(zip(clients, self._checked(work, found), strict=True))

    def never_heard(self, state: State, clients: Callable[[int], Sequence[int]]) -> set[int]:
        """Return the clients whose updates before the current round of `state` were all lost.

        `clients` returns the clients of a round.
        """
        heard, asked = set[int](), set[int]()
        for round in range(state.round if self.fleet.acts else 0):
            turns = self.turns(dataclasses.replace(state, round=round), clients(round))
            asked |= turns.keys()
            heard |= {client for client, turn in turns.items() if turn.arrives}
        return asked - heard

    def check(self, state: State, rounds: int, clients: Callable[[int], Sequence[int]]) -> None:
        """Raise `UserError` if nothing arrives in any round; `clients` returns the clients of a round."""
        if not self.fleet.acts:
            return
        for round in range(rounds):
            turns = self.turns(dataclasses.replace(state, round=round), clients(round))
            if any(turn.arrives for turn in turns.values()):
                return
        raise UserError(
            f"fleet={self.fleet.label()} loses every client in each of protocol.rounds={rounds}, so nothing would be "
            "trained; change its settings"
        )

    def _work(self, state: State, client: int, down: int) -> Work:
        whole = self.trainer.position(self.trainer.data.size(client))
        return Work(
            client=client,
            steps=int(whole.steps),
            steps_per_epoch=int(whole.epoch_steps),
            down=down,
            up=self._upload_bytes(state, client),
        )

    def _upload_bytes(self, state: State, client: int) -> int:
        """Return the bytes of one client's upload; they follow from shapes, so compute them once, without training."""
        trainer = self.trainer
        warm = state.round < trainer.paths.warm_rounds
        if warm not in self._uploads:
            sums, meter = RoundSums(), trainer.meter
            try:
                trainer.meter = Meter()  # computation of hooks here is not part of the cell's cost
                sums.add(trainer.result(state, client, trainer.visit(state, client), steps=1, images=1, loss=0.0))
            finally:
                trainer.meter = meter
            self._uploads[warm] = sums.upload_bytes
        return self._uploads[warm]

    def _checked(self, work: Sequence[Work], turns: Any) -> list[Turn]:
        """Return the turns as plain numbers; raise `HookError` if they are not valid turns for `work`."""
        wanted = f"the turn of each of {len(work)} clients"
        if not isinstance(turns, (list, tuple)) or len(turns) != len(work):
            raise refusal(self.fleet, "turns", wanted, shown(turns))
        found = []
        for one, turn in zip(work, turns, strict=True):
            if problem := _wrong_with(one, turn):
                raise refusal(self.fleet, "turns", wanted, f"client {one.client} {problem}")
            seconds = None if turn.seconds is None else float(turn.seconds)
            if seconds is not None and seconds > LONGEST:
                raise UserError(
                    f"fleet={self.fleet.label()} lets client {one.client} take {seconds:.3g} seconds in a round, "
                    f"more than {LONGEST:g}, the limit; change its settings"
                )
            cut = turn.steps is not None and turn.steps < one.steps
            found.append(Turn(int(turn.steps) if cut else None, bool(turn.arrives), seconds))
        clocked = any(turn.seconds is not None for turn in found)
        for one, turn in zip(work, found, strict=True):
            if clocked and turn.arrives and turn.seconds is None:
                raise refusal(self.fleet, "turns", wanted, f"client {one.client} has no seconds, but others do")
        return found


def _wrong_with(one: Work, turn: Any) -> str:
    """Return what is wrong with a client's turn; empty if it is valid."""
    if not isinstance(turn, Turn):
        return f"gets {described(turn)}, not a Turn"
    if not isinstance(turn.arrives, (bool, np.bool_)):
        return f"arrives: {described(turn.arrives)}, neither True nor False"
    if turn.steps is not None and not (_is(Integral, turn.steps) and 1 <= turn.steps <= one.steps):
        return f"cannot take {described(turn.steps)} of its {one.steps} steps"
    if turn.seconds is not None and not (_is(Real, turn.seconds) and 0 <= turn.seconds < math.inf):
        return f"cannot take {described(turn.seconds)} seconds"
    return ""


def _is(kind: type, value: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def count_turns(meter: Meter, turns: Turns) -> None:
    """Add the outcomes of a round's clients to the meter, for a fleet that acts."""
    arrived = sum(turn.arrives for turn in turns.values())
    meter.lost += len(turns) - arrived
    meter.cut += sum(turn.steps is not None for turn in turns.values())
    meter.empty_rounds += arrived == 0
    if clocked := [turn.seconds for turn in turns.values() if turn.seconds is not None]:
        meter.simulated_seconds = (meter.simulated_seconds or 0.0) + max(clocked)
