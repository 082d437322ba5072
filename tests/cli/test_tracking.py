"""MLflow seen from the command line: never in the way, never lost."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from fedspan.benchmark.mirror.runs import Mirror
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.running import grid
from fedspan.benchmark.spec.settings import How
from tests.cli.conftest import ONE, QUICK, failures, records
from tests.helpers import PATIENCE

TRACKED = tuple(word for word in QUICK if word != "tracking=false")
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def store(here, empty_store):
    empty_store(here / "results")


def mirrored():
    """Return the keys of the runs in the store."""
    return sorted(Mirror(Results(Path("results"))).runs)


def test_a_single_run_is_mirrored(fedspan):
    ran = fedspan("run", *TRACKED)
    assert (ran.status, ran.err) == (0, "")
    assert mirrored() == sorted(records())


def test_a_single_run_mirrors_its_own_record_alone_and_sync_the_rest(fedspan):
    fedspan("run", *QUICK)
    [earlier] = records()
    assert fedspan("run", *TRACKED, "seed=1").status == 0
    assert mirrored() == sorted({*records()} - {earlier})
    assert fedspan("sync").out.startswith("1 run mirrored")
    assert mirrored() == sorted(records())


@pytest.mark.slow
def test_a_grid_mirrors_its_own_records_alone_and_sync_the_rest(fedspan):
    fedspan("run", *QUICK)
    [earlier] = records()
    assert "\n2 runs mirrored" in fedspan("run", "-m", *TRACKED, *ONE, "seed=1,2").out
    assert mirrored() == sorted({*records()} - {earlier})
    assert fedspan("sync").out.startswith("1 run mirrored")
    assert mirrored() == sorted(records())


@pytest.mark.parametrize("refused", [("addons=[feddecorr,feddecorr]",), ("dataset=cifar10",)])
def test_a_cell_that_cannot_run_opens_no_store(fedspan, monkeypatch, refused):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE)
    rest = [word for word in TRACKED if "dataset" not in word]
    ran = fedspan("run", *rest, *refused)
    assert ran.status in (1, 2)
    assert "MLflow" not in ran.err


@pytest.mark.usefixtures("with_toys")
def test_a_grid_is_mirrored_with_its_failures(fedspan):
    ran = fedspan("run", "-m", *TRACKED, *ONE, "algorithm=fedavg,toy_raises,toy_picky")
    assert ran.status == 1
    assert re.search(r"^3 runs mirrored to MLflow \(sqlite:///", ran.out, re.MULTILINE)
    assert mirrored() == sorted([*records(), *(failure["key"] for failure in failures())])


def test_out_of_reach_training_goes_on_and_a_later_sync_catches_up(fedspan, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE)
    ran = fedspan("run", *TRACKED)
    assert ran.status == 0
    assert ran.complaint.startswith(f"fedspan: MLflow could not be reached ({NOWHERE}: ")
    assert ran.complaint.endswith("the record is kept, run 'fedspan sync' later")
    assert len(records()) == 1
    late = fedspan("sync")
    assert late.status == 1
    assert late.complaint.startswith(f"fedspan: MLflow could not be reached: {NOWHERE}: ")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert fedspan("sync").out.startswith("1 run mirrored to MLflow (sqlite:///")
    assert fedspan("sync").out.startswith("0 runs mirrored")
    assert mirrored() == sorted(records())


# doctor ---------------------------------------------------------------------------------------------


def test_a_healthy_installation(fedspan, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    fedspan("run", *QUICK)
    [record] = Path("results/records").glob("*.json")
    record.with_suffix(".spectra.json").write_text("{}")  # belongs to the record
    ran = fedspan("doctor")
    assert (ran.status, ran.err) == (0, "")
    found = dict(re.findall(r"^ *ok +(\S.*?)  +(\S.*?) *$", ran.out, re.MULTILINE))
    assert "torch" in found["versions"]
    assert found["dataset digits"] == "1438 training and 359 test images of (1, 8, 8)"
    assert "dataset.root" in found["dataset image_folder"]
    assert found["results"].endswith("writable, 1 record")
    assert "reachable, 0 runs" in found["tracking"]
    assert "!!" not in ran.out


def test_a_check_creates_nothing(fedspan, here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    before = sorted(here.rglob("*"))
    ran = fedspan("doctor", "paths.results=fresh")
    assert (ran.status, ran.err) == (0, "")
    assert f"{here / 'fresh'}: will be created" in ran.out
    assert f"{here / 'fresh' / 'mlflow.db'}, will be created" in ran.out
    assert sorted(here.rglob("*")) == before


def test_what_needs_attention_is_marked(fedspan, here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE)
    (here / "taken").touch()
    ran = fedspan("doctor", "paths.results=taken")
    assert ran.status == 1
    marked = dict(re.findall(r"^ *!! +(\S.*?)  +(\S.*?) *$", ran.out, re.MULTILINE))
    assert set(marked) == {"results", "tracking"}
    assert "cannot write taken" in marked["results"]
    assert NOWHERE in marked["tracking"]


@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="the system knows no priorities")
def test_the_mirror_gets_what_training_leaves(here, monkeypatch):
    started = []

    class Noted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self.pid)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    with grid.mirroring([], How(results=here / "results", data=here), Console()):
        [pid] = started
        assert os.getpriority(os.PRIO_PROCESS, pid) == max(10, os.getpriority(os.PRIO_PROCESS, 0))
        os.kill(pid, signal.SIGKILL)  # its end is not awaited: at its priority that takes long beside other tests


SLOW_TO_READ = """
import sys, time
from pathlib import Path
for _ in range({tenths}):
    if Path("trained").exists():
        print(len(sys.stdin.readline().split()), "keys")
        break
    time.sleep(0.1)
"""


def test_training_does_not_wait_until_the_mirror_reads_its_keys(here, monkeypatch, capsys):
    """More keys than a pipe holds; a mirror that is not asked to read ends some time."""
    popen, program = subprocess.Popen, SLOW_TO_READ.format(tenths=10 * PATIENCE)
    monkeypatch.setattr(subprocess, "Popen", lambda command, **more: popen([sys.executable, "-c", program], **more))
    with grid.mirroring(["0" * 20] * 10_000, How(results=here / "results", data=here), Console()):
        Path("trained").touch()
    assert capsys.readouterr().out == "10000 keys\n"
