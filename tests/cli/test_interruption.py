"""Killed, interrupted or bereft of a worker: the same command finishes, with the records of an undisturbed run."""

import json
import signal
from pathlib import Path

import pytest

from fedspan.benchmark.cli import ui
from fedspan.benchmark.cli.main import main
from fedspan.benchmark.running.signals import Stopped
from tests.cli.conftest import QUICK, failures, finish, kill_group, records
from tests.helpers import wait_for

LONG = (
    *(word for word in QUICK if not word.startswith("protocol.rounds")),
    "protocol.rounds=6",
    "checkpoint_seconds=0",
)
TWO = ("run", "-m", *LONG, "workers=2")


def checkpoints():
    return list(Path("results/checkpoints").glob("*.safetensors"))


def test_killed_in_the_middle_the_same_command_ends_with_the_same_records(start, fedspan, with_toys):
    grid = ("run", "-m", *LONG, "algorithm=toy_held", "algorithm.at=1", "seed=0,1,2")
    killed = start(*grid, "workers=2")
    wait_for(checkpoints)
    kill_group(killed, signal.SIGKILL)
    finish(killed)
    assert records() == {}
    assert checkpoints()
    Path("go").touch()
    resumed = fedspan(*grid, "workers=1")
    assert (resumed.status, resumed.err) == (0, "")
    fedspan(*grid, "workers=1", "paths.results=undisturbed")
    assert records() == records("undisturbed")
    assert len(records()) == 3
    assert checkpoints() == []


@pytest.mark.slow
def test_a_worker_that_dies_costs_only_its_cell(start, fedspan):
    ran = finish(start(*TWO, "algorithm=toy_dies,fedavg"))
    assert ran.status == 1
    [failure] = failures()
    assert failure["spec"]["algorithm"]["name"] == "toy_dies"
    assert "its worker died 2 times" in failure["reason"]
    assert "Traceback" not in ran.err
    fedspan("run", *LONG, "paths.results=alone")
    assert records() == records("alone") != {}


def test_an_interruption_is_one_line_and_loses_nothing(start, fedspan, with_toys):
    grid = ("run", "-m", *LONG, "algorithm=toy_held", "algorithm.at=1", "seed=0,1,2", "workers=1")
    process = start(*grid)
    wait_for(checkpoints)
    kill_group(process, signal.SIGINT)
    ran = finish(process)
    assert ran.status == 130
    assert ran.complaint == "fedspan: interrupted; run the same command again to resume"
    assert checkpoints()
    Path("go").touch()
    assert fedspan(*grid).status == 0
    assert len(records()) == 3


@pytest.mark.parametrize(("end", "status"), [(KeyboardInterrupt, 130), (Stopped, 143)])
def test_servers_that_are_ended_leave_nothing_to_resume(monkeypatch, capsys, end, status):
    def run(*_):
        raise end

    monkeypatch.setattr(ui, "run", run)
    assert main(["ui"]) == status
    assert capsys.readouterr().err == "fedspan: the site and MLflow are closed\n"


@pytest.mark.slow
def test_a_driver_that_is_asked_to_end_lets_its_workers_save_first(start, fedspan, with_toys):
    words = [word for word in LONG if not word.startswith("checkpoint_seconds")]
    grid = ("run", "-m", *words, "checkpoint_seconds=1000", "algorithm=toy_slow", "algorithm.seconds=2", "seed=0,1")
    process = start(*grid, "workers=2")
    wait_for(
        lambda: len([path for path in Path("results/status").glob("*.json") if "accuracy" in path.read_text()]) == 2
    )
    process.terminate()
    ran = finish(process)
    assert ran.status == 143
    assert ran.complaint == "fedspan: terminated; run the same command again to resume"
    assert len(checkpoints()) == 2


@pytest.mark.slow
def test_workers_end_with_a_driver_that_is_killed(start, here):
    process = start("run", "-m", *QUICK, "workers=2", "algorithm=toy_held", "seed=0,1")
    wait_for(lambda: len(list(Path("results/leases").glob("*.json"))) == 2)
    workers = [json.loads(path.read_text())["pid"] for path in Path("results/leases").glob("*.json")]
    process.kill()
    process.wait()
    Path("go").touch()
    wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
