"""What a fleet makes of the clients of a round: how many steps each takes, what arrives, how long that takes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from fedspan.benchmark.errors import HookError, Incompatible, UserError
from fedspan.benchmark.fleet import NO_TURNS, Draws, Fleet, Turn, Turns, Work
from fedspan.benchmark.training.executors.round_sums import RoundSums
from fedspan.benchmark.training.local import LocalTrainer
from fedspan.benchmark.training.meter import Meter
from fedspan.benchmark.training.state import State
from fedspan.benchmark.training.traffic import download_bytes

LONGEST = 1e12  # seconds of a simulated round, some 30,000 years


class FleetAtWork:
    """The fleet of one run: asks it for the turns of every round, and checks what it says."""

    def __init__(self, fleet: Fleet, trainer: LocalTrainer, seed: int) -> None:
        if fleet.acts and trainer.method.one_client:
            name = next(component.name for component in trainer.method.components if component.one_client)
            raise Incompatible(f"'{name}' trains on all images in one place, where fleet={fleet.name} means nothing")
        self.fleet, self.trainer, self.seed = fleet, trainer, seed
        self._uploads: dict[bool, int] = {}  # of one client, in the warm-up or after it

    def turns(self, state: State, clients: Sequence[int]) -> Turns:
        """Return the clients' turns in the current round of `state`; raise `HookError` for impossible ones."""
        if not self.fleet.acts:
            return NO_TURNS
        downs = download_bytes(self.trainer, state, clients)
        work = [self._work(state, client, down) for client, down in zip(clients, downs, strict=True)]
        try:
            found = self.fleet.turns(work, Draws(self.seed, state.round))
        except OverflowError as error:
            raise UserError(f"fleet={self.fleet.label()}: its settings are out of range ({error})") from error
        self._check(work, found)
        return dict(zip(clients, found, strict=True))

    def check(self, state: State, rounds: int, clients: Callable[[int], Sequence[int]]) -> None:
        """Raise `UserError` if nothing arrives in any round; `clients` returns those of a round."""
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
        """Return the bytes of one client's upload, computed once, without training: they follow from shapes."""
        trainer = self.trainer
        warm = state.round < trainer.paths.warm_rounds
        if warm not in self._uploads:
            sums, meter = RoundSums(), trainer.meter
            try:
                trainer.meter = Meter()  # what hooks compute here is no part of the cell's cost
                sums.add(trainer.handed(state, client, trainer.visit(state, client), steps=1, images=1, loss=0.0))
            finally:
                trainer.meter = meter
            self._uploads[warm] = sums.upload_bytes
        return self._uploads[warm]

    def _check(self, work: Sequence[Work], turns: Sequence[Turn]) -> None:
        name = f"fleet '{self.fleet.name}', turns"
        if len(turns) != len(work):
            raise HookError(f"{name}: it returned {len(turns)} turns for {len(work)} clients")
        for one, turn in zip(work, turns, strict=True):
            if turn.steps is not None and not 1 <= turn.steps <= one.steps:
                raise HookError(f"{name}: client {one.client} cannot take {turn.steps} of its {one.steps} steps")
            if turn.seconds is not None and LONGEST < turn.seconds < math.inf:
                raise UserError(
                    f"fleet={self.fleet.label()} lets client {one.client} take {turn.seconds:.3g} seconds in a round, "
                    f"at most {LONGEST:g} can be simulated; change its settings"
                )
            if turn.seconds is not None and not 0 <= turn.seconds < math.inf:
                raise HookError(f"{name}: client {one.client} cannot take {turn.seconds} seconds")


def count_turns(meter: Meter, turns: Turns) -> None:
    """Add what became of the clients of a round, under a fleet that acts, to the meter."""
    arrived = sum(turn.arrives for turn in turns.values())
    meter.lost += len(turns) - arrived
    meter.cut += sum(turn.steps is not None for turn in turns.values())
    meter.empty_rounds += arrived == 0
    if clocked := [turn.seconds for turn in turns.values() if turn.seconds is not None]:
        meter.simulated_seconds = (meter.simulated_seconds or 0.0) + max(clocked)
