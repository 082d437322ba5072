"""Trials of one board, shared by processes and interrupted."""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
import yaml

from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.selection import select
from fedspan.benchmark.spec.studies import studies_of
from tests.faults.conftest import PATIENCE
from tests.helpers import wait_for

ASKED = ("board=mine", "workers=1", "tracking=false", "checkpoint_seconds=0")


@pytest.fixture
def held(here, with_toys):
    """Write a board of a method that waits in its second round for the file `go`; return its study."""
    folder = here / "leaderboards" / "boards"
    folder.mkdir(parents=True)
    base = {
        "dataset.limit": 60, "clients": 2, "partition": "iid", "model.width": 2, "model.features": 4,
        "protocol.rounds": 2, "protocol.local_epochs": 1, "algorithm": "toy_held", "algorithm.at": 1, "seed": [0, 1],
    }  # fmt: skip
    (folder / "mine.yaml").write_text(yaml.safe_dump({"base": base, "tune": {"trials": 6}}))
    [study] = studies_of({"board": ["mine"]})
    return study


def at_work(count):
    """Tell whether `count` cells have a checkpoint: their processes wait in the second round."""
    return len(list(Path("results/checkpoints").glob("*.safetensors"))) >= count


def test_four_processes_share_the_trials_and_each_is_computed_once(fork, computed, held, here):
    processes = [fork("run", "-m", *ASKED) for _ in range(4)]
    wait_for(lambda: at_work(4))
    (here / "go").touch()
    for process in processes:
        process.join(PATIENCE)
        assert process.exitcode == 0
    found = select(held, Results(Path("results")).read)
    assert found.missing == 0
    keys = {cell.cell.key for cell in (*held.cells, *held.default, *found.tuned)}
    assert Counter(computed()) == dict.fromkeys(keys, 1)


def test_a_kill_amid_the_trials_changes_nothing(fork, computed, held, here):
    first = fork("run", "-m", *ASKED)
    wait_for(lambda: at_work(1))
    os.kill(first.pid, signal.SIGKILL)
    first.join(PATIENCE)
    (here / "go").touch()
    second = fork("run", "-m", *ASKED)
    second.join(PATIENCE)
    assert second.exitcode == 0
    found = select(held, Results(Path("results")).read)
    assert (found.missing, found.chosen is None) == (0, False)
    assert set(Counter(computed()).values()) == {1}
