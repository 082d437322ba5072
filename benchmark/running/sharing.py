"""How many workers a cell may have: all that were asked for where it runs alone, in a grid its share."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.running.launchers import connect
from fedspan.benchmark.spec.settings import How

if TYPE_CHECKING:
    from fedspan.benchmark.training.run import Run

log = logging.getLogger("fedspan")

LOOK_SECONDS = 5.0  # between two looks at the cells beside: those of a grid do not begin at the same moment
LAUNCHERS = (None, "basic", "joblib")  # of this machine; others give a cell cores of its own


def obstacle(how: How, lone: bool = False) -> str | None:
    """Return why a cell with these settings must train in one process; None if workers can help.

    Workers are forked from the process of the cell, after which neither threads nor GPUs of that process work in them.
    Those of a `lone` cell may be Ray's, which have GPUs of their own.
    """
    if how.threads > 1:
        return f"train one cell with threads=1 only, not with threads={how.threads}: a worker is a core"
    if lone and how.launcher == "ray":
        return None
    if how.device != "cpu":
        return f"train one cell on device={how.device} with launcher=ray only, as a single run: one worker for each GPU"
    if how.launcher not in LAUNCHERS:
        return f"train one cell on this machine only, not with launcher={how.launcher}, which spreads cells of a grid"
    if sys.platform != "linux":
        return f"train one cell on Linux only, not on {sys.platform}"
    if torch.cuda.device_count():
        return "cannot be forked where torch sees a GPU; set CUDA_VISIBLE_DEVICES= to nothing, or choose workers=1"
    return None


def check_workers(how: How) -> None:
    """Raise `UserError` if a single run cannot have the workers that it asks for; connect to Ray if they are there."""
    if how.workers in (None, 1):
        return
    if why := obstacle(how, lone=True):
        raise UserError(f"workers={how.workers} {why}")
    if how.launcher == "ray":
        connect(how)


def useful(run: Run, workers: int) -> int:
    """Return how many of so many `workers` have something to do in the coming round, at least one."""
    clients = len(run.participants())
    return min(workers, max(1, -(-clients // run.alone.together(clients, workers))))


class Alone:
    """The workers of a cell that was asked for by itself: all of them, but no more than have clients in a round."""

    def __init__(self, how: How) -> None:
        self.asked = how.workers or 1
        self._told = False

    def __call__(self, run: Run) -> int:
        """Return the number of workers for the coming round; 1 means the process of the cell alone."""
        workers = useful(run, self.asked)
        if self.asked > workers and not self._told:
            self._told = True
            clients = len(run.participants())
            some = f"{clients} clients train" if clients > 1 else "one client trains"
            beside = " side by side" if workers < clients else ""
            log.warning("workers=%d, but %s%s in a round: %d will do", self.asked, some, beside, workers)
        return workers


class Among:
    """The workers of a cell of a grid: `workers` divided by the number of cells that this machine computes now.

    So cells run side by side, and the last ones share the workers that have no cell of their own any more. `beside`
    counts the other cells. A cell begins alone, and without `workers` in the settings it stays so.
    """

    def __init__(self, how: How, beside: Callable[[], int]) -> None:
        self.asked = 1 if obstacle(how) else how.workers or 1
        self.beside = beside
        self._share, self._looked = 1, time.monotonic()

    def __call__(self, run: Run) -> int:
        """Return the number of workers for the coming round; 1 means the process of the cell alone."""
        if self.asked == 1:
            return 1
        if (now := time.monotonic()) - self._looked >= LOOK_SECONDS:
            self._looked, self._share = now, self.asked // (1 + self.beside())
        return useful(run, max(1, self._share))
