"""Many grids over one results folder: each cell is computed once, and nobody waits for the dead."""

import json
import os
import re
import signal
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from fedspan.benchmark.cli import run
from fedspan.benchmark.cli.main import main
from fedspan.benchmark.running import grid
from fedspan.benchmark.running.leases import Leases, Owner
from tests.faults.conftest import GRID, check_files, finish, leftovers, plain
from tests.helpers import wait_for


def test_four_processes_finish_a_grid_of_16_cells_and_compute_each_once(fork, computed):
    processes = [fork(*GRID, "seed=range(0,8)", "algorithm=fedavg,fedprox") for _ in range(4)]
    assert [finish(process) for process in processes] == [0, 0, 0, 0]
    assert len(plain()) == 16
    assert Counter(computed()) == dict.fromkeys(plain(), 1)
    check_files()
    assert leftovers() == set()


def test_grids_that_overlap_share_their_cells(fork, computed):
    processes = [fork(*GRID, f"seed=range({first},{first + 4})") for first in (0, 2)]
    assert [finish(process) for process in processes] == [0, 0]
    assert Counter(computed()) == dict.fromkeys(plain(), 1)
    assert len(plain()) == 6


def test_a_grid_waits_for_a_cell_that_another_computes_and_goes_on_with_it_when_that_dies(fork, computed, with_toys):
    held = (*GRID, "algorithm=toy_held", "algorithm.at=1", "seed=0")
    first = fork(*held)
    wait_for(lambda: list(Path("results/checkpoints").glob("*.safetensors")))
    second = fork(*held)
    wait_for(lambda: "waiting for 1 cell" in Path("output").read_text())
    os.kill(first.pid, signal.SIGKILL)
    Path("go").touch()
    assert finish(second) == 0
    assert len(computed()) == len(plain()) == 1
    assert leftovers() == set()


def lost_with_its_machine(key):
    """Put a lease of another machine in the place of a record."""
    Path(f"results/records/{key}.json").unlink()
    Path("results/leases").mkdir(exist_ok=True)
    owner = {**asdict(Owner.me()), "machine": "another", "host": "far"}
    Path(f"results/leases/{key}.1.json").write_text(json.dumps(owner))


def test_a_cell_of_a_machine_that_is_gone_is_taken_over_when_its_lease_expires(fork, computed, monkeypatch):
    monkeypatch.setattr(grid, "Leases", lambda folder: Leases(folder, expiry=1.0))
    assert finish(fork(*GRID, "seed=0,1")) == 0
    gone = sorted(plain())[0]
    lost_with_its_machine(gone)
    assert finish(fork(*GRID, "seed=0,1,2")) == 0
    assert Counter(computed()) == {**dict.fromkeys(plain(), 1), gone: 2}
    assert leftovers() == set()


def test_a_single_run_takes_over_the_cell_of_a_machine_that_is_gone(computed, monkeypatch, capfd):
    monkeypatch.setattr(run, "EXPIRY", 0.0)
    assert main(["run", *GRID[2:], "seed=0"]) == 0
    [gone] = plain()
    lost_with_its_machine(gone)
    assert main(["run", *GRID[2:], "seed=0"]) == 0
    assert "on far has begun fedavg on" in capfd.readouterr().out
    assert Counter(computed()) == {gone: 2}
    assert leftovers() == set()


def test_a_single_run_says_who_computes_its_cell_already(fork, computed, with_toys, capfd):
    process = fork(*GRID, "algorithm=toy_held")
    wait_for(lambda: list(Path("results/leases").glob("*.json")))
    assert main(["run", *GRID[2:], "algorithm=toy_held"]) == 2
    assert re.search(rf"process {process.pid} on \S+ is already computing ", capfd.readouterr().err)
    Path("go").touch()
    assert finish(process) == 0


def test_a_failure_is_known_to_all_grids_that_run_and_tried_once(fork, computed, with_toys):
    words = (*GRID, "algorithm=toy_raises", "seed=0,1,2")
    processes = [fork(*words) for _ in range(2)]
    assert [finish(process) for process in processes] == [1, 1]
    assert len(list(Path("results/failures").glob("*.json"))) == 3
    assert computed() == []
