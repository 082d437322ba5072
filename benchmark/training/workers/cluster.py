"""The Ray cluster at RAY_ADDRESS, or one of this machine alone."""

from __future__ import annotations

import os

from fedspan.benchmark import discovery, numerics
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.spec.settings import How

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def connect(how: How) -> None:
    """Connect this process to the cluster, unless it is; raise `UserError` if that cannot be.

    A cluster of this machine alone has as many cores as `workers` and their threads need.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError:
        raise UserError("launcher=ray is not installed; install fedspan[ray]") from None
    address = os.environ.get("RAY_ADDRESS")
    if address and not how.results.is_absolute():
        raise UserError(f"paths.results={how.results} must be an absolute path that all nodes of the Ray cluster share")
    if address and (near := [path for path in how.plugins if not os.path.isabs(path)]):
        raise UserError(f"plugins={near[0]} must be an absolute path that all nodes of the Ray cluster share")
    for name in THREADS:
        os.environ.setdefault(name, "1")
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    cores = (how.workers or os.cpu_count() or 1) * how.threads
    here = {} if address else {"num_cpus": cores, "include_dashboard": False}
    try:
        if not ray.is_initialized():
            passed = [name for name in (*THREADS, numerics.CHOICE, discovery.VARIABLE) if name in os.environ]
            environment = {"env_vars": {name: os.environ[name] for name in passed}}
            ray.init(address=address, runtime_env=environment, **quiet, **here)
    except Exception as error:  # whatever the cluster and its network raise
        raise UserError(f"launcher=ray cannot use {address or 'this machine'}: {error}".split("\n")[0]) from error
