"""A cell's workers: assignment of calls, recovery of a dead worker's calls, and results in order."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.training.state import State
from fedspan.benchmark.training.workers.messages import pack
from fedspan.benchmark.training.workers.replica import residents_of, state_update
from fedspan.benchmark.training.workers.replies import Reply
from fedspan.benchmark.training.workers.schedule import Schedule
from fedspan.benchmark.training.workers.transport import SLOTS, Transport, Worker

if TYPE_CHECKING:
    from fedspan.benchmark.training.run import Run

log = logging.getLogger("fedspan")

HELD_BYTES = 256 * 2**20  # of results waiting for their turn
CALLS = 4  # per worker in an evaluation, so that all workers finish together
DEATHS = 3  # of workers at the same call, after which the cell fails


class Pool:
    """The workers of a run: each runs calls on its own replica of the cell, and results are yielded in order."""

    def __init__(self, run: Run, transport: Transport) -> None:
        self.run, self.transport, self.size = run, transport, 0
        self.workers: list[Worker] = []
        self._sent_state: tuple[tuple[Any, ...], Any] | None = None  # trees last sent to the workers, and their message

    def resize(self, size: int) -> None:
        """Set the number of workers, at least one; new ones start when there is work."""
        self.size = size
        self._end(self.workers[size:])

    def each(
        self,
        state: State,
        function: Callable[..., Any],
        calls: Sequence[Sequence[Any]],
        costs: Sequence[float],
        held: int = 0,
        lent: bool = False,
    ) -> Iterator[Any]:
        """Yield ``function(*call)`` for each call, in order; the costliest start first.

        `held` is the approximate size of a result in bytes. If results are `lent`, their tensors may be in a worker's
        memory, which its next call overwrites: copy what must outlive the request of the next result. Raises a call's
        exception at its turn, and `UserError` if a call repeatedly kills its worker or workers cannot be started.
        """
        self._end([worker for worker in self.workers if worker.calls])  # busy with the calls of an abandoned iteration
        self._tell(state)
        self._fill()
        residents = residents_of(self.run, state)
        window = max(2 * SLOTS * self.size, HELD_BYTES // max(held, 1))
        schedule, turn = Schedule(costs, window), 0
        arrived: dict[int, Reply] = {}
        deaths: Counter[int] = Counter()
        while turn < len(calls):
            for worker in self.workers:
                for number in self._next(worker, schedule, turn):
                    worker.give(number, pack((function, calls[number]), residents))
            for worker in self.transport.listen(self.workers, wait=turn not in arrived):
                self._take(worker, schedule, arrived, deaths, turn if lent else None)
            if turn in arrived:
                yield self._value(arrived.pop(turn))
                turn += 1

    def _tell(self, state: State) -> None:
        """Send the state to the workers, unless they have it."""
        trees = (state.params, state.buffers, state.server, state.round)
        if self._sent_state is None or not all(a is b for a, b in zip(self._sent_state[0], trees, strict=True)):
            self._sent_state = trees, self.transport.publish(state_update(self.run, state))
            for worker in self.workers:
                worker.receive_state(self._sent_state[1])

    def _next(self, worker: Worker, schedule: Schedule, turn: int) -> Iterator[int]:
        """Yield the calls that a worker gets now: one, or two if many are left, so that it never waits."""
        while worker.ready and len(worker.calls) < (SLOTS if schedule.left > self.size else 1):
            number = schedule.take(turn)
            if number is None:
                return
            yield number

    def _take(
        self,
        worker: Worker,
        schedule: Schedule,
        arrived: dict[int, Reply],
        deaths: Counter[int],
        lent: int | None,
    ) -> None:
        """Collect a worker's replies; if it has died, put its calls back and start a replacement."""
        try:
            arrived.update(worker.answers(lent))
            return
        except EOFError:
            self._end([worker])
        for number in worker.calls:
            schedule.put_back(number)
        for number in worker.calls[:1]:
            deaths[number] += 1
            log.warning("a worker died; what it computed is computed again")
            if deaths[number] >= DEATHS:
                raise UserError(f"{DEATHS} workers died at the same piece of work; is there enough memory?")
        self._fill()

    def _fill(self) -> None:
        """Start the missing workers."""
        while len(self.workers) < self.size:
            try:
                self.workers.append(self.transport.start())
            except OSError as error:  # no memory, or too many processes or open files
                raise UserError(f"workers={self.size} cannot be started here: {error}; choose fewer") from error
            if self._sent_state is not None:
                self.workers[-1].receive_state(self._sent_state[1])

    def _end(self, workers: Sequence[Worker]) -> None:
        for worker in list(workers):
            self.workers.remove(worker)
            worker.close()

    def _value(self, reply: Reply) -> Any:
        reply.book(self.run.meter)
        if reply.error is not None:
            raise reply.error
        return reply.value

    def share(self, images: int, batch: int) -> int:
        """Return the number of images per evaluation call, in whole batches, for a few calls per worker."""
        batches = -(-images // batch)
        return batch * max(1, batches // (CALLS * self.size))

    def close(self) -> None:
        """End the workers for good and close the transport."""
        try:
            self._end(self.workers)
        finally:  # closing the transport ends those that are left
            self.transport.close()
