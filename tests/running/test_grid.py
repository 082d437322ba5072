import inspect
import io
import json
import os
import signal
import tempfile
import time
import warnings
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from hydra.core.utils import JobReturn, JobStatus
from hypothesis import given, settings
from hypothesis import strategies as st
from joblib.externals.loky import process_executor
from rich.console import Console

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.records.index import Entry
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.running import grid, job
from fedspan.benchmark.running.cell_run import Outcome, make_record
from fedspan.benchmark.running.hydra_jobs import RENEWED, make_launcher
from fedspan.benchmark.running.launchers import launcher_words
from fedspan.benchmark.running.leases import Leases, Owner
from fedspan.benchmark.running.retry import prepare
from fedspan.benchmark.running.signals import Stopped, TimedOut
from fedspan.benchmark.running.summary import summarise
from fedspan.benchmark.spec.board import load_board
from fedspan.benchmark.spec.compose import resolve
from fedspan.benchmark.spec.overrides import axes_of, override_text
from fedspan.benchmark.spec.plan import plan, plan_grid
from fedspan.benchmark.spec.settings import How
from tests.helpers import NOWHERE, PATIENCE, whole
from tests.toys import Blobs, toy

# what a command line asks for ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("seed=3", "seed", [3]),
        ("seed=0,1,2", "seed", [0, 1, 2]),
        ("seed=range(0,3)", "seed", [0, 1, 2]),
        ("seed=choice(4,5)", "seed", [4, 5]),
        ("algorithm=fedavg,fedprox", "algorithm", ["fedavg", "fedprox"]),
        ("addons=[feddecorr]", "addons", [["feddecorr"]]),
        ("addons=[],[feddecorr]", "addons", [[], ["feddecorr"]]),
        ("dataset.root='my photos, all'", "dataset.root", ["my photos, all"]),
        ("workers=null", "workers", [None]),
        ("partition.alpha=1e-2,0.5", "partition.alpha", [0.01, 0.5]),
        ("board=a,b", "board", ["a", "b"]),
    ],
)
def test_a_setting_has_one_value_or_is_swept(text, key, values):
    assert axes_of([text]) == {key: values}


texts = st.text("ab '\",=[]{}$\\é", max_size=9)
values = st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), st.none(), texts)


@given(st.dictionaries(st.sampled_from(["seed", "clients", "dataset.root"]), st.lists(values, max_size=3)))
def test_what_is_written_as_an_override_is_read_back_unchanged(axes):
    assert axes_of(override_text(key, items) for key, items in axes.items()) == {k: [v] for k, v in axes.items()}


def keys(axes):
    return [planned.cell.key for planned in plan_grid(axes)]


@given(
    seeds=st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True),
    clients=st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True),
    algorithms=st.lists(st.sampled_from(["fedavg", "fedprox"]), min_size=1, max_size=2, unique=True),
)
@settings(max_examples=20)
def test_a_sweep_is_the_full_product_and_its_order_does_not_matter(seeds, clients, algorithms):
    axes = {"seed": seeds, "clients": clients, "algorithm": algorithms}
    found = keys(axes)
    assert len(found) == len(set(found)) == len(seeds) * len(clients) * len(algorithms)
    assert set(keys({name: values[::-1] for name, values in reversed(axes.items())})) == set(found)


def test_cells_that_are_the_same_run_once():
    assert len(keys({"partition.alpha": [1, 1.0], "addons": ["feddecorr", ["feddecorr"]]})) == 1


def test_several_boards_share_their_cells(tmp_path):
    for name, seeds in (("a", [0, 1]), ("b", [1, 2])):
        (tmp_path / f"{name}.yaml").write_text(f"grid: [{{seed: {seeds}}}]")
    assert len(keys({"board": [str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]})) == 3


# launchers that lose workers ------------------------------------------------------------------------


class Faulty:
    """A launcher with a few workers; a cell that kills its worker takes all that run at that moment with it."""

    def __init__(self, cells, results, how, workers, deaths, there=None):
        self.there = there or {"pid": DEAD, "started": "long ago"}
        self.cells = {tuple(self.words(cell)): cell for cell in cells}
        self.results, self.how, self.workers, self.deaths = results, how, workers, dict(deaths)
        self.starts = dict.fromkeys((cell.cell.key for cell in cells), 0)

    @staticmethod
    def words(planned):
        return [override_text(key, value) for key, value in planned.overrides.items()]

    def launch(self, jobs, initial_job_idx):
        cells = [self.cells[tuple(job)] for job in jobs]
        for first in range(0, len(cells), self.workers):
            together = cells[first : first + self.workers]
            for planned in together:
                self.starts[planned.cell.key] += 1
                lease_of_a_dead_process(self.results, planned.cell.key, self.there)
            killers = [planned for planned in together if self.deaths.get(planned.cell.key, 0) > 0]
            for planned in killers:
                self.deaths[planned.cell.key] -= 1
            if killers:
                raise ChildProcessError("a worker is gone")
            for planned in together:
                finish(planned, self.results, self.how)
        return [JobReturn(status=JobStatus.COMPLETED, _return_value=1.0) for _ in jobs]


def lease_of_a_dead_process(results, key, there):
    """Leave what a worker leaves that was killed in the middle of a cell."""
    results.leases.mkdir(parents=True, exist_ok=True)
    number, _ = Leases(results.leases).newest(key)
    owner = {**asdict(Owner.me()), **there}
    (results.leases / f"{key}.{number + 1}.json").write_text(json.dumps(owner))


def finish(planned, results, how):
    outcome = Outcome(scores={"trained": {"accuracy": 50.0}})
    results.write(whole(make_record(planned.cell, how, outcome, None)))
    Leases(results.leases).forget(planned.cell.key)


FOREVER = 10**6
DEAD = 2**22 + 1  # more than any process number


@cache
def twelve_cells():
    """Plan once what every example runs."""
    return plan([{"seed": seed} for seed in range(12)])


@given(
    deaths=st.dictionaries(st.integers(0, 11), st.sampled_from([1, FOREVER]), max_size=4),
    workers=st.integers(1, 5),
)
@settings(max_examples=40)
def test_a_worker_that_dies_costs_its_own_cell_and_no_other(deaths, workers):
    cells = twelve_cells()
    dying = {cells[number].cell.key: times for number, times in deaths.items()}
    with tempfile.TemporaryDirectory() as folder:
        results, how = Results(Path(folder)), How(Path(folder), Path(folder))
        launcher = Faulty(cells, results, how, workers, dying)
        grid.launch_all(launcher, cells, results, how)
        for key, starts in launcher.starts.items():
            failure = results.failure(key)
            if dying.get(key) == FOREVER:
                assert results.read(key) is None
                assert failure["reason"].startswith("its worker died 2 times")
                assert starts >= 2
            else:
                assert failure is None
                assert results.read(key)["status"] == "done"


class Unseen(Leases):
    """Leases of other machines, of which those expire that a grid has waited for."""

    known: ClassVar[set[tuple[str, int]]] = set()
    expired: ClassVar[set[tuple[str, int]]] = set()

    def _void(self, key, number, owner):
        self.known.add((key, number))
        return (key, number) in self.expired


@pytest.mark.parametrize("workers", [1, 3])
def test_a_cell_that_kills_its_workers_on_other_machines_fails_too(tmp_path, monkeypatch, workers):
    cells = twelve_cells()
    dying = {cells[2].cell.key: FOREVER, cells[3].cell.key: 1, cells[7].cell.key: FOREVER}
    monkeypatch.setattr(grid, "Leases", Unseen)
    monkeypatch.setattr(grid.time, "sleep", lambda seconds: Unseen.expired.update(Unseen.known))
    results, how = Results(tmp_path), How(tmp_path, tmp_path)
    launcher = Faulty(cells, results, how, workers, dying, there={"machine": "another", "host": "far"})
    grid.launch_all(launcher, cells, results, how)
    lost = {key for key in launcher.starts if results.failure(key) is not None}
    assert lost == {key for key, times in dying.items() if times == FOREVER}
    assert all(results.read(key) for key in launcher.starts if key not in lost)
    assert max(launcher.starts.values()) < 12


def test_a_cell_whose_worker_died_is_run_again_like_any_that_failed(tmp_path):
    cells = twelve_cells()[:3]
    results, how = Results(tmp_path), How(tmp_path, tmp_path)
    grid.launch_all(Faulty(cells, results, how, 1, {cells[1].cell.key: FOREVER}), cells, results, how)
    again = plan(load_board(prepare(results, {})["board"]).expand())
    assert [planned.cell.key for planned in again] == [cells[1].cell.key]


class Broken:
    def __init__(self, error=None, returned=()):
        self.error, self.returned = error, returned

    def launch(self, jobs, initial_job_idx):
        if self.error:
            raise self.error
        return [JobReturn(status=JobStatus.COMPLETED, _return_value=value) for value in self.returned]


@pytest.mark.parametrize("more", [{"device": "cuda"}, {"dataset": "cifar10"}], ids=["no such device", "no such images"])
def test_an_impossible_stack_is_skipped_where_its_cell_could_not_run(tmp_path, monkeypatch, more):
    """As on the login node of a cluster; one such cell stops no grid."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    places = {"paths.results": str(tmp_path), "paths.data": str(tmp_path / "none")}
    [planned] = plan([places | {"addons": ["feddecorr", "feddecorr"], **more}])
    assert grid._impossible(planned, How.of(planned.config))
    assert Results(tmp_path).read(planned.cell.key)["status"] == "skipped"


def test_no_record_is_set_aside_whose_images_no_setting_names(tmp_path):
    how = {"paths.results": str(tmp_path), "fresh": True}
    cells = plan([NOWHERE | how, how])
    results = Results(tmp_path)
    stale = make_record(cells[0].cell, How.of(cells[0].config), Outcome(scores={"trained": {"accuracy": 50.0}}), None)
    stale["provenance"]["sources"] = {}
    results.write(whole(stale))
    with pytest.raises(UserError, match=r"dataset\.source is not set"):
        grid.run_grid(cells, Broken())
    assert results.path(cells[0].cell.key).exists()


@toy("dataset", "themed")
class Themed(Blobs):
    """Images of a theme; no file holds them."""

    content: str = "stars"


def test_a_dataset_without_files_is_not_refused_for_want_of_their_place():
    assert not Themed().unplaced()


class Preempting:
    """A cluster that ends each job after a round; `saves` says whether the cell was saved by then."""

    def __init__(self, cell, results, how, saves, rounds=5):
        self.cell, self.results, self.how, self.saves, self.left = cell, results, how, saves, rounds

    def launch(self, jobs, initial_job_idx):
        self.left -= 1
        if not self.left:
            finish(self.cell, self.results, self.how)
            return [JobReturn(status=JobStatus.COMPLETED, _return_value=1.0)]
        if self.saves:
            path = self.results.checkpoint(self.cell.cell.key)
            path.parent.mkdir(exist_ok=True)
            path.write_text("saved")
            os.utime(path, ns=(self.left, self.left))
        return [JobReturn(status=JobStatus.COMPLETED, _return_value=Stopped())]


def test_a_cell_that_a_cluster_ends_early_is_started_until_it_is_done_if_it_saves_its_rounds(tmp_path):
    [cell] = plan([{"seed": 0}])
    results, how = Results(tmp_path), How(tmp_path, tmp_path)
    grid.launch_all(Preempting(cell, results, how, saves=True), [cell], results, how)
    assert results.read(cell.cell.key)["status"] == "done"
    results.path(cell.cell.key).unlink()
    with pytest.raises(UserError, match="made no progress with 1 cell: Stopped: the cluster ended its job"):
        grid.launch_all(Preempting(cell, results, how, saves=False), [cell], results, how)


@pytest.mark.parametrize(
    ("launcher", "message"),
    [
        (Broken(ConnectionError("no cluster\nhere")), "made no progress with 2 cells: ConnectionError: no cluster$"),
        (Broken(), "made no progress with 2 cells: it returned no result"),
        (Broken(returned=[1.0, UserError("cannot write results")]), "cannot write results"),
    ],
)
def test_a_launcher_that_starts_nothing_ends_the_grid_with_its_reason(tmp_path, launcher, message):
    cells = plan([{"seed": 0}, {"seed": 1}])
    with pytest.raises(UserError, match=message):
        grid.launch_all(launcher, cells, Results(tmp_path), How(tmp_path, tmp_path))


def launching_like_ray(terminated):
    """Wait as Ray does, which says that it was interrupted whatever the signal."""
    try:
        if terminated:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(PATIENCE)
    except Stopped:
        pass
    raise KeyboardInterrupt


def test_a_terminated_grid_says_so_even_if_its_launcher_calls_it_interrupted(tmp_path):
    for terminated in (True, False):
        with pytest.raises(KeyboardInterrupt) as found, grid._passing_on(Results(tmp_path)):
            launching_like_ray(terminated)
        assert isinstance(found.value, Stopped) == terminated


# the end --------------------------------------------------------------------------------------------


def test_the_summary_counts_outcomes_and_tells_each_reason_once(tmp_path, capsys):
    cells = plan([{"seed": seed} for seed in range(6)])
    how = How(tmp_path, tmp_path)
    outcomes = [
        Outcome(scores={"trained": {"accuracy": 1.0}}),
        *[Outcome("failed", "no memory")] * 3,
        Outcome("skipped", "no way"),
    ]
    found = [make_record(cell.cell, how, outcome, None) for cell, outcome in zip(cells, outcomes, strict=False)]
    console = Console(file=io.StringIO(), width=100)
    done, *failed, skipped = found
    ran = {record["key"] for record in found[1:]}
    summarise(console, cells, [Entry.about(done), Entry.about(skipped)], failed, ran, 75.0, how)
    said = console.file.getvalue()
    rows = [[part.strip() for part in line.strip("│").split("│")] for line in said.splitlines() if line.startswith("│")]
    assert rows == [["done", "1", "0"], ["skipped", "1", "1"], ["failed", "3", "3"], ["without outcome", "1", "1"]]
    out, err = capsys.readouterr()
    kept = tmp_path / "failures" / f"{cells[1].cell.key}.json"
    assert err == f"failed: {cells[1].cell.label} and 2 more: no memory (kept in {kept})\n"
    assert out == f"skipped: {cells[4].cell.label}: no way\n"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory.\nTried 20 GiB"),
            "out of memory: CUDA out of memory. Tried 20 GiB",
        ),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried"), "out of memory: DefaultCPUAllocator"),
        (RuntimeError("CUDA error: out of memory"), "out of memory: CUDA error: out of memory"),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling"), "out of memory: CUBLAS_STATUS_ALLOC_FAILED"),
        (MemoryError(), "out of memory: "),
        (TimedOut("timed out after 3 s; more"), "timed out after 3 s; more"),
        (UserError("change it"), "change it"),
        (ValueError("two\nlines"), "ValueError: two lines"),
    ],
)
def test_a_failure_has_its_reason_in_one_line(error, reason):
    found = job.reason_of(error)
    assert found.startswith(reason.strip())
    assert "\n" not in found


def test_a_cell_that_times_out_once_its_record_is_written_is_no_failure(tmp_path, monkeypatch):
    [planned] = plan([{"dataset.limit": 60, "clients": 2, "partition": "iid", "protocol.rounds": 1}])
    real = job.run_cell

    def late(*inputs):
        real(*inputs)
        raise TimedOut("timed out after 3 s")

    monkeypatch.setattr(job, "run_cell", late)
    made = job.run_job(resolve({**planned.overrides, "paths.results": str(tmp_path), "tracking": False}), [])
    assert made["status"] == "done"
    assert list(Results(tmp_path).failures.glob("*")) == []


def test_a_worker_that_loky_renews_between_two_cells_is_no_warning():
    [warning] = [line for line in inspect.getsource(process_executor).splitlines() if RENEWED in line]
    with warnings.catch_warnings(record=True) as said:
        warnings.resetwarnings()
        make_launcher(launcher_words(How.of(resolve({"workers": 2}))))
        for text, module in ((warning.strip(' "'), process_executor.__name__), ("Another", process_executor.__name__)):
            warnings.warn_explicit(text, UserWarning, "process_executor.py", 1, module=module)
    assert [str(one.message) for one in said] == ["Another"]
