"""A cell's workers: who makes which call, what becomes of the calls of a worker that dies, and results in order."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.training.run import Run
from fedspan.benchmark.training.state import State
from fedspan.benchmark.training.workers.crew import SLOTS, Crew
from fedspan.benchmark.training.workers.messages import pack, unpack
from fedspan.benchmark.training.workers.resident import Papers, Report, Setup, news, residents_of
from fedspan.benchmark.training.workers.schedule import Schedule

log = logging.getLogger("fedspan")

HELD_BYTES = 256 * 2**20  # of results that wait for their turn
CALLS = 4  # of each worker in an evaluation, so that they end together
DEATHS = 3  # of workers by one and the same call, after which the cell fails


class Pool:
    """The workers of a run. They make calls on what each of them has of its own, and results come in order.

    Until the first of them is ready, and whenever there is none, this process makes the calls itself.
    """

    def __init__(self, run: Run, crew: Crew) -> None:
        self.run, self.crew, self.size = run, crew, 0
        self.setup, self.papers = Setup.of(run.cell, run.how), Papers.of(run)
        self.ready: list[Any] = []
        self.stillborn = 0  # workers that ended before they were ready, since one was
        self._busy: dict[int, list[int]] = {}  # calls of a worker, by its identity, in the order given
        self._told: tuple[tuple[Any, ...], Any] | None = None  # the last news, and of which trees

    def resize(self, size: int) -> None:
        """Have `size` workers from now on."""
        for worker in list(self.crew.workers)[size:]:
            self._lose(worker)
            self.crew.dismiss(worker)
        for worker in self.crew.workers if not self.size else []:  # they worked for another cell
            self.crew.engage(worker, self.setup)
        self.size = size
        self._fill()

    def wait(self) -> None:
        """Wait until all workers are ready; raise `UserError` if they cannot be."""
        nothing = Schedule([], 1)
        while len(self.ready) < self.size:
            for worker, (kind, said) in self.crew.listen(wait=True):
                self._take(worker, kind, said, nothing, {}, Counter())

    def release(self) -> None:
        """Leave the workers to another cell."""
        self.size = 0
        self.ready.clear()

    def each(
        self,
        state: State,
        function: Callable[..., Any],
        calls: Sequence[Sequence[Any]],
        costs: Sequence[float],
        held: int = 0,
    ) -> Iterator[Any]:
        """Yield ``function(*call)`` of each call, in their order; the costliest are begun first.

        `held` is about how many bytes a result has. Raises what a call raises when its turn comes, and `UserError` if
        a call ends its worker again and again.
        """  # fmt: skip
        began = time.perf_counter()
        try:
            yield from self._each(state, function, calls, costs, held)
        except BaseException:
            self.close()  # calls are under way whose results nobody will take
            raise
        finally:
            self.run.meter.spread_seconds += time.perf_counter() - began

    def _each(
        self, state: State, function: Callable[..., Any], calls: Sequence[Sequence[Any]], costs: Sequence[float],
        held: int,
    ) -> Iterator[Any]:  # fmt: skip
        self._tell(state)
        residents = residents_of(self.run) | {"state": state}
        window = max(2 * SLOTS * self.size, HELD_BYTES // max(held, 1))
        schedule, turn = Schedule(costs, window), 0
        arrived: dict[int, Report] = {}
        deaths: Counter[int] = Counter()
        while turn < len(calls):
            for worker in self.ready:
                self._supply(worker, schedule, turn, lambda number: pack((function, calls[number]), residents))
            if turn in arrived:
                yield self._value(arrived.pop(turn))
                turn += 1
                continue
            alone = not any(self._busy.values()) and not self.ready and not deaths[turn]
            for worker, (kind, said) in self.crew.listen(wait=not alone):
                self._take(worker, kind, said, schedule, arrived, deaths)
            if alone and not self.ready:
                schedule.take_turn(turn)
                yield self._here(function, calls[turn])
                turn += 1

    def _here(self, function: Callable[..., Any], call: Sequence[Any]) -> Any:
        began = time.perf_counter()
        try:
            return function(*call)
        finally:
            self.run.meter.worker_seconds += time.perf_counter() - began

    def _tell(self, state: State) -> None:
        """Give the workers the state, unless they have it."""
        trees = (state.params, state.buffers, state.server, state.round)
        if self._told is not None and all(a is b for a, b in zip(self._told[0], trees, strict=True)):
            return
        self._told = trees, self.crew.tell(pack(news(state, self.run)))
        for worker in self.ready:
            self.crew.pass_on(worker, self._told[1])

    def _supply(self, worker: Any, schedule: Schedule, turn: int, packed: Callable[[int], Any]) -> None:
        """Give a worker its next call, where many are left also the one after that, so that it never waits."""
        mine = self._busy[id(worker)]
        while len(mine) < (SLOTS if schedule.left > len(self.ready) else 1):
            number = schedule.take(turn)
            if number is None:
                return
            mine.append(number)
            self.crew.give(worker, packed(number))

    def _take(
        self, worker: Any, kind: str, said: Any, schedule: Schedule, arrived: dict[int, Report], deaths: Counter[int]
    ) -> None:
        """Act on what a worker says."""
        if kind == "ready":
            self._welcome(worker, said)
        elif kind == "refused":
            raise UserError(f"a worker cannot prepare the cell {said}")
        elif kind == "done":
            number = self._busy[id(worker)].pop(0)
            head, memory = said
            arrived[number] = unpack(head, memory, device=self.run.device, copy=True)
        else:
            self._bury(worker, said, schedule, deaths)

    def _bury(self, worker: Any, said: str, schedule: Schedule, deaths: Counter[int]) -> None:
        """Have another worker take the place of one that has died; its calls wait again."""
        self.stillborn += worker not in self.ready
        if self.stillborn >= DEATHS:
            raise UserError(f"{DEATHS} workers ended before they were ready: {said}")
        lost = self._lose(worker)
        for number in lost:
            schedule.put_back(number)
        if lost:
            deaths[lost[0]] += 1
            log.warning("a worker died; what it computed is computed again")
            if deaths[lost[0]] >= DEATHS:
                raise UserError(f"{DEATHS} workers died at the same clients; is there enough memory?")
        self._fill()

    def _welcome(self, worker: Any, papers: Papers) -> None:
        if conflict := papers.conflict(self.papers):
            raise UserError(f"a worker on {papers.host} would give other bits: {conflict}")
        self.ready.append(worker)
        self.stillborn = 0
        self._busy[id(worker)] = []
        if self._told is not None:
            self.crew.pass_on(worker, self._told[1])

    def _lose(self, worker: Any) -> list[int]:
        """Forget a worker; return the calls that it leaves."""
        if worker in self.ready:
            self.ready.remove(worker)
        return self._busy.pop(id(worker), [])

    def _fill(self) -> None:
        for _ in range(self.size - len(self.crew.workers)):
            self.crew.engage(self.crew.start(), self.setup)

    def _value(self, report: Report) -> Any:
        report.book(self.run.meter)
        if report.error is not None:
            raise report.error
        return report.value

    def share(self, images: int, batch: int) -> int:
        """Return how many of `images` to evaluate in one call, in whole batches: a few calls for each worker."""
        batches = -(-images // batch)
        return batch * max(1, batches // (CALLS * max(self.size, 1)))

    def close(self) -> None:
        """End the workers."""
        self.size = 0
        self.ready.clear()
        self._busy.clear()
        self.crew.close()
