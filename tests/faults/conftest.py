"""Grids of tiny cells in processes that can be killed: forked, because starting Python anew takes seconds."""

import contextlib
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from fedspan.benchmark import registry
from fedspan.benchmark.cli.main import main
from fedspan.benchmark.records.provenance import git_commit
from fedspan.benchmark.records.results import Results
from tests.cli.conftest import QUICK, ROOT, here, start, toys, with_toys  # noqa: F401
from tests.helpers import PATIENCE, wait_for, without_clock

GRID = ("run", "-m", *QUICK, "workers=1", "checkpoint_seconds=0")


@pytest.fixture(autouse=True, scope="session")
def imported():
    """Import here, once, what each forked process would import."""
    for module in ("sklearn.datasets", "hydra", "fedspan.benchmark.mirror.runs"):
        importlib.import_module(module)
    registry.discover()
    git_commit()


@pytest.fixture
def computed(here, monkeypatch):  # noqa: F811
    """Note every cell that any process computes to its end, and return a function that reads the notes."""
    from fedspan.benchmark.running import job

    run_cell, notes = job.run_cell, here / "computed"

    def noting(*arguments):
        record = run_cell(*arguments)
        with notes.open("a") as file:
            file.write(f"{record['key']}\n")
        return record

    monkeypatch.setattr(job, "run_cell", noting)
    return lambda: notes.read_text().split() if notes.exists() else []


@pytest.fixture
def fork(here):  # noqa: F811
    """Return a function that starts a command in a process of its own."""
    started = []

    def begin(*words):
        process = multiprocessing.get_context("fork").Process(target=command, args=(words,))
        process.start()
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.join()


def command(words):
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.stdout = sys.stderr = open("output", "a", buffering=1)  # noqa: SIM115 - closed by the end of the process
    os._exit(main(list(words)))


def finish(process):
    """Wait for a command and return its status; show what it said if that is not 0."""
    process.join(PATIENCE)
    assert process.exitcode is not None, "it does not end"
    if process.exitcode:
        print(Path("output").read_text())
    return process.exitcode


def plain(folder="results"):
    """Return the records of a folder by key as the bytes of all that is no time, place, neighbour or command.

    So records that are equal here hold the same digests: the same weights after every round and in every stage.
    """
    return {path.stem: timeless(path) for path in sorted(Path(folder, "records").glob("*.json"))}


def timeless(path):
    record = json.loads(path.read_text())
    assert set(record["digests"]["rounds"]) == set(map(str, record["curve"]["round"]))
    assert "trained" in record["digests"]["stages"]
    del record["digest"], record["provenance"]["command"]
    record["provenance"].pop("cells_beside", None)
    for name in ("git_commit", "sources", "engine"):  # a checkout may be edited meanwhile
        record["provenance"].pop(name, None)
    record["compute"] = without_clock(record["compute"])
    return json.dumps(record).encode()


def check_files(folder="results"):
    """Every file is whole, whenever the power went off."""
    results = Results(Path(folder))
    for path in results.records.glob("*.json"):
        assert results.read(path.stem) is not None
    for path in results.failures.glob("*.json"):
        assert results.failure(path.stem) is not None
    assert not results.aside.exists()


def leftovers(folder="results"):
    """Return what is there beside records and the models for later use."""
    files = {path for path in Path(folder).rglob("*") if path.is_file() and path.name != "index.db"}
    return {str(p) for p in files if p.parent.name not in ("records", "trained") or p.suffix == ".tmp"}


# Ray ------------------------------------------------------------------------------------------------

CLUSTER = """
    import sys
    from ray.cluster_utils import Cluster
    node = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 80 * 2**20}  # GPUs on paper
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    other = cluster.add_node(**node)
    cluster.wait_for_nodes()
    open("address", "w").write(cluster.address)
    if sys.stdin.readline():
        cluster.remove_node(other, allow_graceful=False)
    sys.stdin.read()
    cluster.shutdown()
"""


@dataclass
class Nodes:
    """A Ray cluster of two nodes, each with one core, one GPU on paper and 80 MiB for objects.

    `variables` tell processes where it is.
    """

    process: subprocess.Popen
    variables: dict[str, str]

    def remove_one(self):
        """Kill all that is on the second node."""
        self.process.stdin.write("remove\n")
        self.process.stdin.flush()


@contextlib.contextmanager
def ray_nodes(folder, *paths):
    """Start a cluster in a folder; its processes find modules in the other folders too."""
    pytest.importorskip("ray", reason="the extra fedspan[ray] is not installed")
    place = folder / "cluster"
    place.mkdir()
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "HOME": str(folder)}
    settings["RAY_worker_niceness"] = "0"  # at Ray's own 15 workers starve on a machine that has more to do
    settings["PYTHONPATH"] = os.pathsep.join(map(str, (*paths, ROOT)))
    command = [sys.executable, "-c", textwrap.dedent(CLUSTER)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=place, env=os.environ | settings, text=True) as cluster:
        address = place / "address"
        wait_for(lambda: cluster.poll() is not None or (address.exists() and address.read_text()))
        assert cluster.poll() is None, "the cluster has ended"
        yield Nodes(cluster, {"RAY_ADDRESS": address.read_text(), "RAY_AUTH_MODE": "disabled"})
        cluster.stdin.close()
