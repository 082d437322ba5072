"""The executor that has workers train the clients of a round."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fedspan.benchmark.method import States
from fedspan.benchmark.training.client_view import received
from fedspan.benchmark.training.executors.loop import Loop, Trained, Visits
from fedspan.benchmark.training.local import Finished
from fedspan.benchmark.training.state import Row, State
from fedspan.benchmark.training.workers.actors import Actors
from fedspan.benchmark.training.workers.pool import Pool
from fedspan.benchmark.training.workers.processes import Processes
from fedspan.benchmark.tree import clone, nbytes

if TYPE_CHECKING:
    from fedspan.benchmark.training.run import Run


MESSAGE_SECONDS = 0.1  # that the clients of a message take about, where they are quick


class Spread(Loop):
    """An executor on workers: what they hand back is summed and remembered here, in the order of clients, bit for bit.

    Each of them trains its clients as `executor` does here. `seconds` is what a client of the last round took a worker
    in the mean.
    """

    def __init__(self, executor: Loop, pool: Pool) -> None:
        super().__init__(executor.trainer)
        self.executor, self.pool = executor, pool
        self.seconds = math.inf

    def each(self, state: State, visits: Visits) -> Iterator[Trained]:
        groups = self.groups(visits.clients)
        calls = Calls(partial(call_of, self.executor, state, visits), groups)
        costs = [float(sum(self._steps(client, visits) for client in group)) for group in groups]
        held = max(map(len, groups), default=0) * (nbytes(state.params) + nbytes(state.buffers))
        before = self.trainer.meter.worker_seconds
        for trained in self.pool.each(state, train, calls, costs, held, lent=True):
            for done, model in trained:
                yield self._lasting(done), None if model is None else clone(model)
                visits.tick()
        self.seconds = (self.trainer.meter.worker_seconds - before) / max(len(visits.clients), 1)

    def _lasting(self, done: Finished) -> Finished:
        """Return a result of which nothing is lent but what is summed at once."""
        if done.row.empty and not self.trainer.method.sees_updates:
            return done
        states = {name: clone(tree) for name, tree in done.row.states.items()}
        delta = clone(done.delta) if self.trainer.method.sees_updates else done.delta
        return replace(done, delta=delta, row=Row(clone(done.row.own), states))

    def groups(self, order: Sequence[int]) -> list[Sequence[int]]:
        """Return the clients of each message, in their order.

        Of quick clients many go into one message, as long as there are many left: else the driver would be busy with
        messages. The last ones go alone, so that the workers end together.
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

    def _steps(self, client: int, visits: Visits) -> int:
        trainer = self.trainer
        return int(trainer.position(trainer.data.size(client), visits.turn(client).steps).steps)


Call = tuple[Loop, State, Visits, dict[int, Row], dict[int, States]]


@dataclass(frozen=True)
class Calls(Sequence[Call]):
    """A round's calls, each made when a worker gets it: where the server writes to single clients it holds models."""

    make: Callable[[Sequence[int]], Call]
    groups: Sequence[Sequence[int]]

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, number: Any) -> Any:
        return self.make(self.groups[number])


def call_of(executor: Loop, state: State, visits: Visits, group: Sequence[int]) -> Call:
    """Return what has a worker `train` a group of the visits' clients."""
    trainer = executor.trainer
    messages = {client: received(trainer, state, client) for client in group if trainer.method.writes}
    return executor, state, visits.part(group), state.rows_of(*group), messages


def train(
    executor: Loop, state: State, visits: Visits, rows: dict[int, Row], messages: dict[int, States]
) -> list[Trained]:
    """Train the clients of some visits, of which those in `rows` have these rows; return what each hands back.

    `messages` has what clients receive, where the server writes to single ones.
    """
    return list(executor.each(state.holding(rows, messages), visits))


def employ(run: Run, workers: int) -> None:
    """Have a run train on so many workers from now on, with one in this process alone: the same bits either way."""
    if workers == 1:
        dismiss(run)
        return
    if run.trainer.pool is None:
        run.trainer.pool = Pool(run, Actors(run) if run.how.launcher == "ray" else Processes(run))
        run.executor = Spread(run.alone, run.trainer.pool)
    run.trainer.pool.resize(workers)
    run.workers = max(run.workers, workers)


def dismiss(run: Run) -> None:
    """End a run's workers, if it has any; it goes on in this process."""
    if run.trainer.pool is not None:
        run.trainer.pool.close()
        run.trainer.pool, run.executor = None, run.alone
