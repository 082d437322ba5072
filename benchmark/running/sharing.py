"""How the cells that run at a time share the workers: each its part, and a cell of few neighbours a larger one."""

from __future__ import annotations

import logging
from collections.abc import Callable

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.training.run import Run

log = logging.getLogger("fedspan")

PAYS = 20.0  # seconds of training left, from which on the start of workers, some five seconds, is worth it
LAUNCHERS = (None, "basic", "joblib", "ray")  # a job of SLURM has cores of its own, and shares none


class Share:
    """How many workers a cell may have now: asked before each round.

    `neighbours` tells how many other cells are computed at this moment. Of the cells of a grid each begins alone; when
    fewer cells are left than there are workers, those that still have long to go take the free ones. A cell that is
    `lone`, whose workers were asked for by number, takes them at once.
    """

    def __init__(self, how: How, neighbours: Callable[[], int], lone: bool) -> None:
        self.how, self.neighbours = how, neighbours
        self.at_once = lone and how.workers is not None
        self.first: tuple[int, float] | None = None  # round and seconds of training at the first question
        if self.at_once and how.workers != 1 and how.device != "cpu" and how.launcher != "ray":
            raise UserError(f"workers={how.workers} on device={how.device} needs launcher=ray: one worker for each GPU")

    def __call__(self, run: Run) -> int:
        """Return the number of workers; 1 means this process alone."""
        clients = len(run.participants())
        if self.at_once:
            return self._all_of_them(run, clients)
        if self.how.launcher not in LAUNCHERS or (self.how.device != "cpu" and self.how.launcher != "ray"):
            return 1
        most = min(self.how.cells_at_a_time, clients)
        if most == 1 or not self._pays(run):
            return 1
        return max(1, min(clients, self.how.cells_at_a_time // (1 + self.neighbours())))

    def _all_of_them(self, run: Run, clients: int) -> int:
        asked = self.how.workers or 1
        if asked > clients and self.first is None:
            self.first = run.state.round, 0.0
            many = f"{clients} clients train" if clients > 1 else "one client trains"
            log.warning("workers=%d, but %s in a round: %d will do", asked, many, clients)
        return min(asked, clients)

    def _pays(self, run: Run) -> bool:
        """Tell whether the rounds so far promise a training that is long enough."""
        now = run.state.round, run.meter.seconds.get("local", 0.0)
        if self.first is None:
            self.first = now
        done = now[0] - self.first[0]
        if done == 0:
            return False
        return (now[1] - self.first[1]) / done * (run.cell.protocol.rounds - now[0]) > PAYS or run.workers > 1
