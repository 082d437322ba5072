"""The executor that has workers train the clients of a round."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from fedspan.benchmark.fleet import NO_TURNS, WHOLE, Turns
from fedspan.benchmark.training.executors.loop import Loop, Trained
from fedspan.benchmark.training.state import Row, State
from fedspan.benchmark.training.workers.actors import Actors
from fedspan.benchmark.training.workers.pool import Pool
from fedspan.benchmark.training.workers.processes import Processes
from fedspan.benchmark.tree import nbytes

if TYPE_CHECKING:
    from fedspan.benchmark.training.run import Run


class Spread(Loop):
    """An executor on workers: what they hand back is summed and remembered here, in the order of clients, bit for bit.

    Each of them trains its clients as `executor` does here.
    """

    def __init__(self, executor: Loop, pool: Pool) -> None:
        super().__init__(executor.trainer)
        self.executor, self.pool = executor, pool

    def each(
        self,
        state: State,
        clients: Collection[int],
        keep: Collection[int] = (),
        tick: Callable[[], None] = lambda: None,
        turns: Turns = NO_TURNS,
    ) -> Iterator[Trained]:
        order, size = sorted(clients), self.executor.together(len(clients), self.pool.size)
        groups = [order[first : first + size] for first in range(0, len(order), size)]
        calls = [
            (
                self.executor,
                state,
                group,
                [client for client in group if client in keep],
                {client: turns[client] for client in group if client in turns},
                state.rows_of(*group),
            )
            for group in groups
        ]
        costs = [float(sum(self._steps(client, turns) for client in group)) for group in groups]
        held = size * (nbytes(state.params) + nbytes(state.buffers))
        for trained in self.pool.each(state, train, calls, costs, held):
            for one in trained:
                yield one
                tick()

    def _steps(self, client: int, turns: Turns) -> int:
        trainer = self.trainer
        return int(trainer.position(trainer.data.size(client), turns.get(client, WHOLE).steps).steps)


def train(
    executor: Loop, state: State, clients: Sequence[int], keep: Sequence[int], turns: Turns, rows: dict[int, Row]
) -> list[Trained]:
    """Train some clients, of which those in `rows` have these rows; return what each hands back."""
    return list(executor.each(state.holding(rows), clients, keep, turns=turns))


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
