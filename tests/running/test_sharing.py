"""How many workers a cell has: all where it runs alone, its share among the cells of a grid."""

import logging
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from fedspan.benchmark import errors
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.places import interpreter
from fedspan.benchmark.running import launchers, sharing
from fedspan.benchmark.running.sharing import GridWorkers, SingleRunWorkers, check_workers, obstacle
from tests.helpers import PATIENCE, how

IMPOSSIBLE = {
    "device": ({"device": "cuda"}, "on device=cuda with launcher=ray only, as a single run: one worker for each GPU"),
    "threads": ({"threads": 2}, "with threads=1 only, not with threads=2"),
    "launcher": ({"launcher": "submitit"}, "on this machine only, not with launcher=submitit"),
}


def run(clients=10, together=1):
    """Return what is looked at: a run of so many clients a round, of which a worker trains some side by side."""
    executor = SimpleNamespace(together=lambda clients, workers: together)
    return SimpleNamespace(participants=lambda: list(range(clients)), local_executor=executor)


@pytest.fixture
def clock(monkeypatch):
    """Return what tells the time, in seconds, to whoever shares workers; tests move it."""
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(sharing, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


@pytest.mark.parametrize(("beside", "workers"), [(0, 8), (1, 4), (2, 2), (3, 2), (4, 1), (7, 1), (20, 1)])
def test_cells_that_run_at_a_time_share_the_workers(clock, beside, workers):
    share = GridWorkers(how(workers=8), lambda: beside)
    assert share(run()) == 1
    clock.seconds += 5
    assert share(run()) == workers
    assert share(run(clients=3)) == min(workers, 3)
    assert share(run(clients=1)) == 1


def test_a_lone_cell_has_the_workers_that_were_asked_for_but_no_more_than_clients():
    assert [SingleRunWorkers(how(workers=8))(run(clients)) for clients in (10, 3, 1, 0)] == [8, 3, 1, 1]


def test_without_workers_a_cell_has_one_process(clock):
    grid = GridWorkers(how(), lambda: 0)
    clock.seconds += 5
    assert SingleRunWorkers(how())(run()) == grid(run()) == 1


def test_a_grid_looks_at_the_cells_beside_every_five_seconds(clock):
    looks = []
    share = GridWorkers(how(workers=4), lambda: looks.append(clock.seconds) or 1)
    for clock.seconds in (100.0, 104.9, 105.0, 106.0, 109.9, 112.0):
        assert share(run()) == (1 if clock.seconds < 105 else 2)
    assert looks == [105.0, 112.0]


def test_workers_beyond_the_clients_are_named_once(caplog):
    share = SingleRunWorkers(how(workers=8))
    with caplog.at_level(logging.WARNING, "fedspan"):
        assert [share(run(clients=6)), share(run(clients=6))] == [6, 6]
    assert [one.getMessage() for one in caplog.records] == ["workers=8, but 6 clients train in a round: 6 will do"]


def test_clients_that_are_trained_side_by_side_need_fewer_workers(clock, caplog):
    stacked, grid = run(clients=25, together=10), GridWorkers(how(workers=8), lambda: 1)
    with caplog.at_level(logging.WARNING, "fedspan"):
        assert SingleRunWorkers(how(workers=8))(stacked) == 3
    clock.seconds += 5
    assert grid(stacked) == 3
    assert [one.getMessage() for one in caplog.records] == [
        "workers=8, but 25 clients train side by side in a round: 3 will do"
    ]


@pytest.mark.parametrize(("settings", "reason"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_where_workers_cannot_be_had_a_lone_cell_is_refused_and_grids_run_as_ever(clock, settings, reason):
    with pytest.raises(UserError, match=f"^workers=4 train one cell {reason}"):
        check_workers(how(workers=4, **settings))
    check_workers(how(workers=1, **settings))
    check_workers(how(**settings))
    grid = GridWorkers(how(workers=4, **settings), lambda: 0)
    clock.seconds += 5
    assert grid(run()) == 1


@pytest.mark.parametrize(
    ("device", "reason"),
    [("cpu", "on this machine only"), ("cuda", "on device=cuda with launcher=ray only")],
)
def test_rays_workers_are_for_lone_cells_and_need_ray(clock, monkeypatch, device, reason):
    ray = how(workers=4, launcher="ray", device=device)
    assert obstacle(ray, lone=True) is None
    assert obstacle(ray).startswith(f"train one cell {reason}")
    grid = GridWorkers(ray, lambda: 0)
    clock.seconds += 5
    assert grid(run()) == 1
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"^launcher=ray is not installed: uv pip install -e '\.\[ray\]' .*checkout$"):
        check_workers(ray)


def test_an_extra_beside_a_wheel_is_installed_by_its_packages(monkeypatch, tmp_path):
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "fedspan" / "benchmark" / "errors.py"))
    assert re.fullmatch(r"uv pip install 'hydra-submitit-launcher[^' ]*'.*", errors.how_to_install("slurm"))


def test_a_visible_gpu_is_named_with_what_to_do(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(
        UserError, match="workers=2 cannot be forked where torch sees a GPU; hide it with CUDA_VISIBLE_DEVICES="
    ):
        check_workers(how(workers=2))


@pytest.mark.parametrize(("threads", "cells"), [(1, 8), (3, 2), (4, 2), (16, 1)])
def test_a_grid_runs_as_many_cells_as_have_cores_for_their_threads(monkeypatch, threads, cells):
    monkeypatch.setattr("fedspan.benchmark.spec.settings.usable_cores", lambda: 8)
    assert how(threads=threads).cells_at_a_time == cells
    assert how(threads=threads, workers=5).cells_at_a_time == 5


@pytest.mark.usefixtures("unchanged_process")
@pytest.mark.parametrize(("threads", "cpus"), [(1, 8), (3, 6), (16, 16)])
def test_a_local_ray_cluster_has_the_cores_of_the_cells_at_a_time(monkeypatch, threads, cpus):
    started = {}
    ray = SimpleNamespace(is_initialized=lambda: False, init=lambda **words: started.update(words))
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(launchers, "check_installed", lambda launcher: None)
    monkeypatch.setattr("fedspan.benchmark.spec.settings.usable_cores", lambda: 8)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    launchers.connect(how(threads=threads))
    assert started["num_cpus"] == cpus


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs the affinity of a process")
def test_a_grid_starts_no_more_workers_than_the_cores_that_its_process_may_use():
    pinned = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"
        "from fedspan.benchmark.spec.settings import How; print(How().cells_at_a_time)"
    )
    ran = subprocess.run([*interpreter(), "-c", pinned], capture_output=True, text=True, timeout=PATIENCE)
    assert ran.stdout == "1\n", ran.stderr
