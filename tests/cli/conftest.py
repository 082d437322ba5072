import contextlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedspan.benchmark import numerics, registry
from fedspan.benchmark.cli.main import main
from fedspan.benchmark.records.record import digest_of
from fedspan.benchmark.running import estimate
from tests.helpers import PATIENCE, numbers

QUICK = (
    "dataset.limit=60", "clients=2", "partition=iid", "model.width=2", "model.features=4",
    "protocol.rounds=3", "protocol.local_epochs=1", "tracking=false",
)  # fmt: skip
ONE = ("workers=1",)
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ran:
    """What a command left on the terminal."""

    status: int
    out: str
    err: str

    @property
    def complaint(self):
        """The one line that the user reads on standard error."""
        [line] = self.err.splitlines()
        return line


def change(path, edit):
    """Change a record as somebody would who computes its digest again."""
    record = json.loads(path.read_text())
    del record["digest"]
    edit(record)
    path.write_text(json.dumps({**record, "digest": digest_of(record)}))


@pytest.fixture(scope="session")
def toys(tmp_path_factory):
    """Return a folder that holds `toys.py` as an installed distribution with an entry point."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copy(Path(__file__).with_name("toys.py"), folder)
    distribution(folder, "toys", "toys = toys")
    return folder


def distribution(folder, name, *entry_points):
    """Write the metadata that an installer would leave."""
    info = folder / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[fedspan.plugins]\n" + "\n".join(entry_points) + "\n")


@pytest.fixture
def here(tmp_path, monkeypatch, unchanged_process):
    """An empty working folder, and nothing of this process is different afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSPAN_DATA", str(tmp_path / "data"))
    return tmp_path


@pytest.fixture
def with_toys(toys, monkeypatch):
    """Register the toys in this process, for one test."""
    registry.discover()
    monkeypatch.setattr(registry, "_plugins", {kind: dict(known) for kind, known in registry._plugins.items()})
    monkeypatch.syspath_prepend(toys)
    monkeypatch.delitem(sys.modules, "toys", raising=False)
    importlib.import_module("toys")
    yield
    sys.modules.pop("toys", None)


@pytest.fixture
def short_calibration(monkeypatch):
    """Time one round: what `fedspan plan` says of a cost is asked here, not how good it is."""
    monkeypatch.setattr(estimate, "SECONDS", 0.0)
    monkeypatch.setattr(estimate, "LEAST", 0.0)


@pytest.fixture
def fedspan(here, capfd, short_calibration):
    """Return a function that runs a command in this process."""

    def run(*words):
        capfd.readouterr()
        status = main([str(word) for word in words])
        return Ran(status, *capfd.readouterr())

    return run


@pytest.fixture
def start(here, toys):
    """Return a function that starts a command in a process group of its own, with the toys installed."""
    started = []

    def start(*words):
        environment = os.environ | {"PYTHONPATH": f"{toys}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": ""}
        command = [sys.executable, "-m", "fedspan.benchmark.cli.main", *map(str, words)]
        process = subprocess.Popen(
            command, cwd=here, env=environment, start_new_session=True, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=_hear_interrupts,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        kill_group(process, signal.SIGKILL)


@pytest.fixture
def unprepared(start, monkeypatch):
    """Return a function that runs a command in a process that this one has not prepared."""
    for name in (numerics.CHOICE, *numerics.VARIABLES):
        monkeypatch.delenv(name, raising=False)
    return lambda *words: finish(start(*words))


def _hear_interrupts():
    """Undo what a shell does to a job in the background: it is started with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def kill_group(process, number):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def finish(process):
    """Wait for a started command."""
    out, err = process.communicate(timeout=PATIENCE)
    return Ran(process.returncode, out, err)


def records(folder="results"):
    """Return the records of a results folder by key, without seconds, memory and provenance."""
    paths = sorted(Path(folder, "records").glob("*.json"))
    return {path.stem: {**numbers(json.loads(path.read_text())), "digest": None} for path in paths}


def failures(folder="results"):
    return [json.loads(path.read_text()) for path in sorted(Path(folder, "failures").glob("*.json"))]
