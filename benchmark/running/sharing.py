"""Number of workers of a cell: all requested ones in a single run, its share in a grid."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.running.launchers import OF_THIS_MACHINE, connect
from fedspan.benchmark.spec.settings import How

if TYPE_CHECKING:
    from fedspan.benchmark.training.run import Run

log = logging.getLogger("fedspan")

POLL_SECONDS = 5.0  # between counts of the other cells: those of a grid do not start at the same moment


def obstacle(how: How, lone: bool = False) -> str | None:
    """Return why a cell with these settings must train in one process; None if workers can help.

    Workers are forked from the cell's process, and neither threads nor GPUs survive a fork. A `lone` cell may use Ray's
    workers, which have their own GPUs.
    """
    if how.threads > 1:
        return f"train one cell with threads=1 only, not with threads={how.threads}: a worker uses one core"
    if lone and how.launcher == "ray":
        return None
    if how.device != "cpu":
        return f"train one cell on device={how.device} with launcher=ray only, as a single run: one worker for each GPU"
    if how.launcher not in OF_THIS_MACHINE:
        return f"train one cell on this machine only, not with launcher={how.launcher}, which spreads cells of a grid"
    if sys.platform != "linux":
        return f"train one cell on Linux only, not on {sys.platform}"
    if torch.cuda.device_count():
        return "cannot be forked where torch sees a GPU; hide it with CUDA_VISIBLE_DEVICES= or choose workers=1"
    return None


def check_workers(how: How) -> None:
    """Raise `UserError` if a single run cannot have the requested workers; connect to Ray if it provides them."""
    if how.workers in (None, 1):
        return
    if why := obstacle(how, lone=True):
        raise UserError(f"workers={how.workers} {why}")
    if how.launcher == "ray":
        connect(how)


def useful_workers(run: Run, workers: int) -> int:
    """Return how many of the `workers` have clients to train in the coming round, at least one."""
    clients = len(run.participants())
    return min(workers, max(1, -(-clients // run.local_executor.together(clients, workers))))


class SingleRunWorkers:
    """Workers of a single run: all requested ones, but no more than have clients in a round."""

    def __init__(self, how: How) -> None:
        self.requested = how.workers or 1
        self._told = False

    def __call__(self, run: Run) -> int:
        """Return the number of workers for the coming round; 1 means the process of the cell alone."""
        workers = useful_workers(run, self.requested)
        if self.requested > workers and not self._told:
            self._told = True
            clients = len(run.participants())
            some = f"{clients} clients train" if clients > 1 else "one client trains"
            beside = " side by side" if workers < clients else ""
            log.warning("workers=%d, but %s%s in a round: %d will do", self.requested, some, beside, workers)
        return workers


class GridWorkers:
    """Workers of a cell in a grid: `workers` divided by the number of cells that this machine computes now.

    Cells run side by side, and workers without a cell left help with the last ones. `beside` counts the other cells. A
    cell starts with one worker, and keeps it if the settings do not give `workers`.
    """

    def __init__(self, how: How, beside: Callable[[], int]) -> None:
        self.requested = 1 if obstacle(how) else how.workers or 1
        self.beside = beside
        self._share, self._looked = 1, time.monotonic()

    def __call__(self, run: Run) -> int:
        """Return the number of workers for the coming round; 1 means the process of the cell alone."""
        if self.requested == 1:
            return 1
        if (now := time.monotonic()) - self._looked >= POLL_SECONDS:
            self._looked, self._share = now, self.requested // (1 + self.beside())
        return useful_workers(run, max(1, self._share))
