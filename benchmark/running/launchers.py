"""Chooses Hydra's launcher, and prepares what it needs: worker processes, a Ray cluster, or SLURM jobs."""

from __future__ import annotations

import importlib.util
import math
import os
import shutil

from fedspan.benchmark.errors import UserError, did_you_mean
from fedspan.benchmark.spec.overrides import override_text
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.training.process import device_of
from fedspan.benchmark.training.workers.cluster import THREADS, connect

LAUNCHERS = {  # the module that each needs
    "basic": "hydra",
    "joblib": "hydra_plugins.hydra_joblib_launcher",
    "ray": "hydra_plugins.hydra_ray_launcher",
    "submitit": "hydra_plugins.hydra_submitit_launcher",
    "submitit_local": "hydra_plugins.hydra_submitit_launcher",
}
EXTRAS = {"submitit": "slurm", "submitit_local": "slurm"}
LOCAL = ("basic", "joblib", "submitit_local")


def check_launcher(how: How) -> None:
    """Raise `UserError` for a launcher that nobody knows."""
    if how.launcher is not None and how.launcher not in LAUNCHERS:
        raise UserError(f"unknown launcher '{how.launcher}'{did_you_mean(how.launcher, LAUNCHERS)}")


def launcher_words(how: How) -> list[str]:
    """Return the overrides that give Hydra the launcher of these settings, ready to start; raise `UserError`."""
    check_launcher(how)
    count = how.cells_at_a_time
    chosen = how.launcher or ("joblib" if count > 1 else "basic")
    if importlib.util.find_spec(LAUNCHERS[chosen]) is None:
        raise UserError(f"launcher={chosen} is not installed; install fedspan[{EXTRAS.get(chosen, chosen)}]")
    if chosen in LOCAL:
        device_of(how.device)  # the cells run on this machine
    for name in THREADS:
        os.environ.setdefault(name, "1")  # one thread per worker; read when a worker starts
    if chosen == "joblib":
        return ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={count}", "hydra.launcher.batch_size='1'"]
    if chosen == "ray":
        return _ray(how)
    if chosen.startswith("submitit"):
        return _submitit(chosen, how)
    return [f"hydra/launcher={chosen}"]


def _ray(how: How) -> list[str]:
    """Connect to the cluster at RAY_ADDRESS, or start one of this machine; each cell takes its share of it."""
    connect(how)
    words = ["hydra/launcher=ray", f"+hydra.launcher.ray.remote.num_cpus={how.threads}"]
    if how.gpus is not None:
        words.append(f"+hydra.launcher.ray.remote.num_gpus={how.gpus}")
    return words


def _submitit(chosen: str, how: How) -> list[str]:
    """One job for each cell: a SLURM array of at most `workers` at a time, or processes here (all at once)."""
    words = [
        f"hydra/launcher={'submitit_slurm' if chosen == 'submitit' else chosen}",
        override_text("hydra.launcher.submitit_folder", f"{how.results.absolute()}/submitit/%j"),
        f"hydra.launcher.cpus_per_task={how.threads}",
        "hydra.launcher.name=fedspan",
    ]
    if how.gpus is not None:
        words.append(f"hydra.launcher.gpus_per_node={math.ceil(how.gpus)}")
    if how.timeout is not None:
        words.append(f"hydra.launcher.timeout_min={math.ceil(how.timeout / 60) + 5}")
    if chosen == "submitit":
        if shutil.which("sbatch") is None:
            raise UserError("launcher=submitit needs SLURM's sbatch, which is not here; use launcher=joblib")
        if how.workers is not None:
            words.append(f"hydra.launcher.array_parallelism={how.workers}")
    return words
