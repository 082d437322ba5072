"""Killed at any instant, a grid that is started again ends with the records of an undisturbed one."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from fedspan.benchmark.records import checkpoint
from fedspan.benchmark.running.signals import Stopped
from tests.faults.conftest import GRID, check_files, finish, leftovers, plain, timeless
from tests.helpers import wait_for

CELLS = ("seed=0,1", "algorithm=fedavg,fedavgm")


def checkpoints(folder="results"):
    return list(Path(folder, "checkpoints").glob("*.safetensors"))


@pytest.fixture
def undisturbed(fork):
    """Return the records of a grid that nobody kills, and the seconds that it took."""
    began = time.monotonic()
    assert finish(fork(*GRID, *CELLS, "paths.results=undisturbed")) == 0
    assert len(plain("undisturbed")) == 4
    return plain("undisturbed"), time.monotonic() - began


@pytest.mark.parametrize("kills", [8, pytest.param(400, marks=pytest.mark.slow)])
def test_kills_at_random_instants_change_no_record(fork, computed, undisturbed, kills):
    """Each grid is killed until it is through; then the next begins, until there were enough kills."""
    draws, expected, seconds = random.Random(0), *undisturbed
    done, grids = 0, 0
    folder = Path("results-0")
    while done < kills or folder.exists():
        words = (*GRID, *CELLS, f"paths.results={folder}")
        stamps = {path: path.stat().st_mtime_ns for path in folder.glob("records/*.json")}
        process = fork(*words)
        if done < kills:
            process.join(draws.uniform(0, seconds))
            done += process.exitcode is None
            process.kill()
            process.join()
        else:
            assert finish(process) == 0
        check_files(folder)
        assert plain(folder).items() <= expected.items()
        assert {path: path.stat().st_mtime_ns for path in stamps} == stamps  # nothing is computed twice
        if process.exitcode == 0:
            assert plain(folder) == expected
            assert leftovers(folder) == set()
            grids += 1
            folder = Path(f"results-{grids}")
    assert grids > 0


def test_a_checkpoint_is_always_one_that_can_be_gone_on_from(fork, undisturbed):
    draws, (expected, seconds), seen = random.Random(1), undisturbed, []
    for _ in range(4):
        process = fork(*GRID, *CELLS)
        process.join(draws.uniform(0, seconds))
        wait_for(lambda process=process: checkpoints() or not process.is_alive())
        process.kill()
        process.join()
        seen += checkpoints()
        for path in checkpoints():
            assert checkpoint.load(path, path.stem) is not None
    assert seen, "no kill left a checkpoint"
    assert finish(fork(*GRID, *CELLS)) == 0
    assert plain() == expected


# asked to end, as clusters do before they kill -----------------------------------------------------

HELD = (*GRID[:-1], "checkpoint_seconds=1000", "algorithm=toy_held", "seed=0")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2], ids=["SIGTERM", "the signal of submitit"])
def test_asked_to_end_a_cell_is_saved_after_its_round_and_goes_on_there(fork, computed, with_toys, number):
    process = fork(*HELD)
    wait_for(lambda: list(Path("results/status").glob("*.json")))
    os.kill(process.pid, number)
    Path("go").touch()
    assert finish(process) == 143
    assert "fedspan: terminated; run the same command again to resume" in Path("output").read_text()
    [saved] = checkpoints()
    assert checkpoint.load(saved, saved.stem)[1]["round"] == 1
    assert (plain(), leftovers()) == ({}, {str(saved), *map(str, Path("results/leases").iterdir())})
    assert finish(fork(*HELD)) == 0
    assert finish(fork(*HELD, "paths.results=undisturbed")) == 0
    assert plain() == plain("undisturbed")
    assert leftovers() == set()


def test_a_round_that_outlasts_the_grace_is_given_up(fork, with_toys, monkeypatch):
    monkeypatch.setattr("fedspan.benchmark.running.signals.GRACE", 0.2)
    process = fork(*HELD)
    wait_for(lambda: list(Path("results/status").glob("*.json")))
    os.kill(process.pid, signal.SIGTERM)
    assert finish(process) == 143
    assert checkpoints() == []


def test_being_asked_to_end_is_no_failure():
    assert not issubclass(Stopped, Exception)


# the same bits -------------------------------------------------------------------------------------


def test_records_do_not_depend_on_order_or_a_resume(fork, with_toys):
    """Byte by byte, but for times, memory and the command."""
    held = (*GRID, "algorithm=toy_held", "algorithm.at=1")
    backwards = (*held, "addons=[feddecorr],[]", "seed=1,0", "paths.results=again")
    interrupted = fork(*backwards)
    wait_for(lambda: checkpoints("again"))
    interrupted.kill()
    interrupted.join()
    Path("go").touch()
    for words in (backwards, (*held, "addons=[],[feddecorr]", "seed=0,1")):
        assert finish(fork(*words)) == 0
    assert len(plain()) == 4
    assert plain("again") == plain()


@pytest.mark.slow
def test_records_do_not_depend_on_workers_or_the_threads_of_libraries(start, undisturbed, monkeypatch):
    expected, _ = undisturbed
    for workers, threads in (("1", "4"), ("2", "1"), ("3", "2")):
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            monkeypatch.setenv(name, threads)
        folder = f"results-{workers}-{threads}"
        words = [word for word in GRID if not word.startswith("workers=")]
        assert start(*words, *CELLS, f"workers={workers}", f"paths.results={folder}").wait() == 0
        assert plain(folder) == expected


def test_bytes_are_compared_and_not_only_numbers(fork, undisturbed):
    path = next(Path("undisturbed/records").glob("*.json"))
    before = timeless(path)
    path.write_text(path.read_text().replace('"loss"', '"lost"', 1))
    assert timeless(path) != before
