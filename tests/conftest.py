import contextlib
import logging
import os
import shutil
import signal
import sqlite3

import pytest
import torch
from hypothesis import HealthCheck, settings

from fedspan.benchmark import discovery, registry
from fedspan.benchmark.mirror.runs import Mirror
from fedspan.benchmark.records.results import Results

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # time is never asserted
settings.load_profile("busy")


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Leave the other cores to the other test workers."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def nothing_waits_for_disks():
    """Leave out fsync: no test cuts the power, and each call takes about 10 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture
def unchanged_process():
    """Put back what a command run in this process changes: logging, environment, files imported, their plugins."""
    registry.discover()
    plugins = {kind: dict(known) for kind, known in registry._plugins.items()}
    logger, environment = logging.getLogger("fedspan"), dict(os.environ)
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    imported = dict(discovery._imported)
    yield
    discovery._imported.clear()
    discovery._imported.update(imported)
    for kind, known in plugins.items():
        registry._plugins[kind].clear()
        registry._plugins[kind].update(known)
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture
def in_a_terminal():
    """Let SIGHUP arrive here and in processes started here, also where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(autouse=True)
def ordinary_arithmetic():
    """Take back what running a cell sets for its process: denormal numbers flushed to zero."""
    yield
    torch.set_flush_denormal(False)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    """Return a function that puts MLflow's embedded store into a results folder; making its tables takes seconds."""
    made = Results(tmp_path_factory.mktemp("store"))
    Mirror(made)

    def put(root):
        root.mkdir(parents=True, exist_ok=True)
        shutil.copy(made.root / "mlflow.db", root)
        with contextlib.closing(sqlite3.connect(root / "mlflow.db")) as store, store:
            store.execute("update experiments set artifact_location = ?", [(root / "mlartifacts").as_uri()])

    return put
