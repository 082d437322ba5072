"""Jobs for Hydra's launchers: the task function of a worker and its configuration."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.records.model import trained_accuracy
from fedspan.benchmark.running.job import run_job
from fedspan.benchmark.running.leases import Busy
from fedspan.benchmark.running.signals import GRACE, Stopped
from fedspan.benchmark.spec.compose import by_hydra, resolve
from fedspan.benchmark.spec.overrides import settings_of

POLL_SECONDS = 1.0  # between checks that the driver is alive
RENEWED = "A worker stopped while some jobs were given to the"  # the start of loky's warning


def _in_joblib_worker() -> bool:
    return multiprocessing.current_process().name.startswith("Loky")


def _is_job() -> bool:
    """Return whether submitit started this process, which then computes a single cell."""
    return "SUBMITIT_EXECUTOR" in os.environ and not _in_joblib_worker()


@cache
def _end_after(driver: int) -> None:
    """Start a thread that ends this joblib worker when its driver has been killed: nothing else would.

    A running cell is saved after its round, as on any SIGTERM.
    """

    def watch() -> None:
        while os.getppid() == driver:
            time.sleep(POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(2 * GRACE)
        os._exit(128 + signal.SIGTERM)

    if _in_joblib_worker():
        threading.Thread(target=watch, name="driver", daemon=True).start()


@dataclass(frozen=True)
class GridJob:
    """Task function that a launcher calls for each cell of a grid; `driver` is the process that the user started.

    It composes the cell's configuration from its overrides, and so imports its plugins, in the process that runs it.
    An error that must end the grid is returned, not raised: Hydra prints extra lines for an exception. So is the end of
    a job of submitit, whose launcher stops waiting for an array once one of its jobs has no result.
    """

    driver: int

    def __call__(self, config: DictConfig) -> float | UserError | Stopped:
        _end_after(self.driver)
        try:
            words = list(HydraConfig.get().overrides.task)
            record = run_job(resolve(settings_of(words)), words)
        except UserError as error:
            return error
        except Busy:
            return math.nan
        except Stopped as stopped:
            if os.getpid() == self.driver:
                raise
            if _is_job():
                return stopped
            if _in_joblib_worker():
                time.sleep(GRACE)  # when one joblib worker ends, all end, and others may still be saving
            os._exit(128 + signal.SIGTERM)
        return math.nan if (reached := trained_accuracy(record)) is None else reached


class JobConfigs:
    """Loader of what Hydra needs to start a job; the job composes the rest, as Hydra's own loader takes 0.1 s."""

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        """Return Hydra's node with the overrides of a job."""
        hydra, master = OmegaConf.structured(HydraConf), master_config.hydra
        for name in ("sweep", "output_subdir", "verbose", "hydra_logging", "job_logging"):
            hydra[name] = master[name]
        hydra.job.name, hydra.job.chdir = master.job.name, False
        hydra.overrides.task = list(sweep_overrides)
        return OmegaConf.create({"hydra": hydra})


class Forgetting(Callback):
    """Callback that drops the configuration from a job's result: launchers keep all results until the end."""

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **context: Any) -> None:
        """Drop the configurations."""
        job_return.cfg = job_return.hydra_cfg = None


def make_launcher(words: Sequence[str]) -> Launcher:
    """Return the launcher that Hydra composes from overrides of its own node, such as ``hydra/launcher=joblib``.

    It also silences loky's warning that it replaced a worker, whose memory had grown, between two cells.
    """
    warnings.filterwarnings("ignore", RENEWED, UserWarning, r"joblib\.externals\.loky")
    config = by_hydra(words, hydra_config=True)
    context = HydraContext(config_loader=JobConfigs(), callbacks=Forgetting())
    return Plugins.instance().instantiate_launcher(context, GridJob(os.getpid()), config)
