"""The executor that has workers train the clients of a round, each with an executor of its own inside."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.training.executors.loop import Loop
from fedspan.benchmark.training.executors.round_sums import RoundSums
from fedspan.benchmark.training.local import Finished
from fedspan.benchmark.training.run import Run
from fedspan.benchmark.training.state import Row, State
from fedspan.benchmark.training.workers.crew import Crew
from fedspan.benchmark.training.workers.pool import Pool
from fedspan.benchmark.training.workers.processes import Processes
from fedspan.benchmark.tree import Tree, nbytes


class Spread:
    """Trains the clients of a round on workers; sums and rows are made here, in the order of clients, as in `loop`."""

    def __init__(self, inside: Loop, pool: Pool) -> None:
        self.inside, self.pool, self.trainer = inside, pool, inside.trainer
        self.name = inside.name

    def run(
        self, state: State, clients: Sequence[int], keep: Collection[int] = (), tick: Callable[[], None] = lambda: None
    ) -> tuple[RoundSums, dict[int, Tree]]:
        """Train `clients` as the executor inside does alone: the same sums, rows and kept models, bit for bit."""
        sums, kept = self.inside.sums(clients), {}
        order = sorted(clients)
        groups = [order[first : first + self.inside.together] for first in range(0, len(order), self.inside.together)]
        calls = [
            (self.inside, state, group, [client for client in group if client in keep], state.rows_of(*group))
            for group in groups
        ]
        costs = [float(sum(map(self.trainer.data.size, group))) for group in groups]
        held = self.inside.together * (nbytes(state.params) + nbytes(state.buffers))
        for trained in self.pool.each(state, train, calls, costs, held):
            for done, model in trained:
                if model is not None:
                    kept[done.client] = model
                state.remember(done.client, done.row)
                sums.add(done)
                tick()
        return sums, kept


def train(
    executor: Loop, state: State, clients: Sequence[int], keep: Collection[int], rows: dict[int, Row]
) -> list[tuple[Finished, Tree | None]]:
    """Train clients from a state and the rows that they have; return what each hands back, and the models to keep."""
    return list(executor.each(state.holding(rows), clients, keep))


def employ(run: Run, workers: int, crew: Crew | None = None) -> None:
    """Have a run train on so many workers from now on; with one, in this process alone.

    The result is the same bit for bit. `crew` are workers that another cell had, or None for new ones: Ray's actors
    under launcher=ray, else processes of this machine.
    """
    pool = run.trainer.pool
    if workers == 1:
        if pool is not None:
            dismiss(run)
        return
    run.workers = max(run.workers, workers)
    if pool is None:
        run.trainer.pool = pool = Pool(run, crew or make_crew(run.how))
        run.executor = Spread(run.alone, pool)
    if pool.size != workers:
        pool.resize(workers)


def make_crew(how: How) -> Crew:
    """Return a crew without workers, of the kind that the settings ask for."""
    if how.launcher == "ray":
        from fedspan.benchmark.training.workers.actors import Actors

        return Actors(how)
    return Processes()


def dismiss(run: Run) -> None:
    """End a run's workers, if it has any; it goes on in this process."""
    if run.trainer.pool is not None:
        run.trainer.pool.close()
    run.trainer.pool, run.executor = None, run.alone
