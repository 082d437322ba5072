"""The executor that distributes the clients of a round over workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fedspan.benchmark.method import States
from fedspan.benchmark.training.client_view import received
from fedspan.benchmark.training.executors.loop import Loop, RoundClients, Trained
from fedspan.benchmark.training.local import ClientResult
from fedspan.benchmark.training.state import Row, State
from fedspan.benchmark.training.workers.actors import Actors
from fedspan.benchmark.training.workers.pool import Pool
from fedspan.benchmark.training.workers.processes import Processes
from fedspan.benchmark.tree import clone, nbytes

if TYPE_CHECKING:
    from fedspan.benchmark.training.run import Run


MESSAGE_SECONDS = 0.1  # approximate work per message, if clients are quick


class Spread(Loop):
    """Executor on workers; their results are summed and stored here in client order, bit for bit as without workers.

    Each worker trains its clients as `executor` does here. `seconds` is the mean worker time per client in the last
    round.
    """

    def __init__(self, executor: Loop, pool: Pool) -> None:
        super().__init__(executor.trainer)
        self.executor, self.pool = executor, pool
        self.seconds = math.inf

    def each(self, state: State, visits: RoundClients) -> Iterator[Trained]:
        groups = self.groups(visits.clients)
        calls = Calls(partial(call_of, self.executor, state, visits), groups)
        costs = [float(sum(self._steps(client, visits) for client in group)) for group in groups]
        held = max(map(len, groups), default=0) * (nbytes(state.params) + nbytes(state.buffers))
        before = self.trainer.meter.worker_seconds
        for trained in self.pool.each(state, train, calls, costs, held, lent=True):
            for done, model in trained:
                yield self._copy_retained(done), None if model is None else clone(model)
                visits.tick()
        self.seconds = (self.trainer.meter.worker_seconds - before) / max(len(visits.clients), 1)

    def _copy_retained(self, done: ClientResult) -> ClientResult:
        """Return a result in which only tensors that are summed immediately are still lent."""
        if done.row.empty and not self.trainer.method.sees_updates:
            return done
        states = {name: clone(tree) for name, tree in done.row.states.items()}
        delta = clone(done.delta) if self.trainer.method.sees_updates else done.delta
        return replace(done, delta=delta, row=Row(clone(done.row.own), states))

    def groups(self, order: Sequence[int]) -> list[Sequence[int]]:
        """Return the clients of each message, in order.

        Quick clients share a message while many are left, to limit the driver's work on messages. The last messages
        are as small as the executor allows, so that the workers finish together.
        """
        together, workers = self.executor.together(len(order), self.pool.size), self.pool.size
        quick = int(MESSAGE_SECONDS / max(self.seconds * together, 1e-6))
        groups: list[Sequence[int]] = []
        first = 0
        while first < len(order):
            left = (len(order) - first) // together
            size = together * max(1, min(quick, left // (2 * workers)))
            groups.append(order[first : first + size])
            first += size
        return groups

    def _steps(self, client: int, visits: RoundClients) -> int:
        trainer = self.trainer
        return int(trainer.position(trainer.data.size(client), visits.turn(client).steps).steps)


Call = tuple[Loop, State, RoundClients, dict[int, Row], dict[int, States]]


@dataclass(frozen=True)
class Calls(Sequence[Call]):
    """A round's calls, each built when a worker gets it, because server messages to single clients may hold models."""

    make: Callable[[Sequence[int]], Call]
    groups: Sequence[Sequence[int]]

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, number: Any) -> Any:
        return self.make(self.groups[number])


def call_of(executor: Loop, state: State, visits: RoundClients, group: Sequence[int]) -> Call:
    """Return the arguments with which a worker calls `train` on a group of the visits' clients."""
    trainer = executor.trainer
    messages = {client: received(trainer, state, client) for client in group if trainer.method.sends_messages}
    return executor, state, visits.part(group), state.rows_of(*group), messages


def train(
    executor: Loop, state: State, visits: RoundClients, rows: dict[int, Row], messages: dict[int, States]
) -> list[Trained]:
    """Train the clients of `visits`, given their existing `rows`; return their results.

    `messages` holds what each client receives, if the server sends messages to single clients.
    """
    return list(executor.each(state.holding(rows, messages), visits))


def start_workers(run: Run, workers: int) -> None:
    """Make a run train on `workers` workers, or in this process if 1; the results are the same, bit for bit."""
    if workers == 1:
        stop_workers(run)
        return
    if run.trainer.pool is None:
        run.trainer.pool = Pool(run, Actors(run) if run.how.launcher == "ray" else Processes(run))
        run.executor = Spread(run.local_executor, run.trainer.pool)
    run.trainer.pool.resize(workers)
    run.workers = max(run.workers, workers)


def stop_workers(run: Run) -> None:
    """End a run's workers, if any, and continue in this process."""
    if run.trainer.pool is not None:
        run.trainer.pool.close()
        run.trainer.pool, run.executor = None, run.local_executor
