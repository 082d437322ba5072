"""Choice and preparation of Hydra's launcher: worker processes, a Ray cluster, or SLURM jobs."""

from __future__ import annotations

import importlib.util
import math
import os
import shutil

from fedspan.benchmark import discovery, numerics
from fedspan.benchmark.errors import UserError, did_you_mean, how_to_install
from fedspan.benchmark.spec.overrides import override_text
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.training.executors import executor_of
from fedspan.benchmark.training.process import THREADS, device_of, limit_threads

LAUNCHERS = {  # the module that each one needs
    "basic": "hydra",
    "joblib": "hydra_plugins.hydra_joblib_launcher",
    "ray": "hydra_plugins.hydra_ray_launcher",
    "submitit": "hydra_plugins.hydra_submitit_launcher",
    "submitit_local": "hydra_plugins.hydra_submitit_launcher",
}
EXTRAS = {"submitit": "slurm", "submitit_local": "slurm"}
LOCAL = ("basic", "joblib", "submitit_local")
OF_THIS_MACHINE = (None, "basic", "joblib")  # others give each cell its own cores
SCHEDULERS = ("ray", "submitit")  # they choose the GPUs of a cell


def check_how(how: How, alone: bool = False) -> None:
    """Raise `UserError` for an unknown executor or launcher, or for GPUs that the launcher cannot assign.

    A single run (`alone`) has its own device, and its workers a GPU each if no share is set.
    """
    executor_of(how.executor)
    if how.launcher is not None and how.launcher not in LAUNCHERS:
        hint = "; for SLURM use submitit" if how.launcher == "slurm" else did_you_mean(how.launcher, LAUNCHERS)
        raise UserError(f"unknown launcher '{how.launcher}'{hint}")
    if how.gpus is not None and how.launcher in OF_THIS_MACHINE:
        raise UserError(f"gpus={how.gpus:g} is a cell's share of the GPUs, which needs launcher=ray or submitit")
    if alone or how.launcher not in SCHEDULERS or how.device == "cpu":
        return
    if how.device != "cuda":
        raise UserError(f"device={how.device}, but launcher={how.launcher} gives each cell its GPU; use device=cuda")
    if how.gpus is None:
        share = "needs gpus=, a cell's share of the GPUs, as in gpus=1"
        raise UserError(f"device=cuda with launcher={how.launcher} {share}")


def check_installed(launcher: str) -> None:
    """Raise `UserError` if the packages of a launcher are missing."""
    if importlib.util.find_spec(LAUNCHERS[launcher]) is None:
        raise UserError(f"launcher={launcher} is not installed: {how_to_install(EXTRAS.get(launcher, launcher))}")


def launcher_words(how: How) -> list[str]:
    """Return the overrides for Hydra's launcher, ready to start; raise `UserError` if it cannot be used."""
    check_how(how)
    count = how.cells_at_a_time
    chosen = how.launcher or ("joblib" if count > 1 else "basic")
    check_installed(chosen)
    if chosen in LOCAL:
        device_of(how.device)  # the cells run on this machine
    limit_threads()
    if chosen == "joblib":
        return ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={count}", "hydra.launcher.batch_size='1'"]
    if chosen == "ray":
        return _ray(how)
    if chosen.startswith("submitit"):
        return _submitit(chosen, how)
    return [f"hydra/launcher={chosen}"]


def _ray(how: How) -> list[str]:
    """Connect to a Ray cluster; return the overrides with each cell's share of it."""
    address = os.environ.get("RAY_ADDRESS")
    if address and not how.results.is_absolute():
        raise UserError(f"paths.results={how.results} must be an absolute path that all nodes of the Ray cluster share")
    if address and (near := [path for path in how.plugins if not os.path.isabs(path)]):
        raise UserError(f"plugins={near[0]} must be an absolute path that all nodes of the Ray cluster share")
    connect(how)
    words = ["hydra/launcher=ray", f"+hydra.launcher.ray.remote.num_cpus={how.threads}"]
    if how.gpus is not None:
        words.append(f"+hydra.launcher.ray.remote.num_gpus={how.gpus}")
    return words


def connect(how: How) -> None:
    """Connect this process to the Ray cluster at RAY_ADDRESS, or start a local one; raise `UserError` on failure."""
    check_installed("ray")
    limit_threads()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_task_oom_retries", "1")  # by default Ray retries forever a cell too large for a node
    import ray

    address = os.environ.get("RAY_ADDRESS")
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    cores = how.cells_at_a_time * how.threads
    here = {} if address else {"num_cpus": cores, "include_dashboard": False}
    try:
        if not ray.is_initialized():
            passed = [name for name in (*THREADS, numerics.CHOICE, discovery.VARIABLE) if name in os.environ]
            environment = {"env_vars": {name: os.environ[name] for name in passed}}
            # Without an address Ray would join a cluster that runs here.
            ray.init(address=address or "local", runtime_env=environment, **quiet, **here)
    except Exception as error:  # any error of the cluster and its network
        raise UserError(f"launcher=ray cannot use {address or 'this machine'}: {error}".split("\n")[0]) from error


def _submitit(chosen: str, how: How) -> list[str]:
    """Return overrides for one job per cell: a SLURM array, `workers` at a time, or local processes, all at once."""
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
