"""A cell whose workers are actors of a Ray cluster; Ray is an extra, and where it is absent these tests say so."""

import contextlib
import os
import re
import signal
from pathlib import Path

import pytest

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.records.provenance import versions
from fedspan.benchmark.running.launchers import connect
from fedspan.benchmark.running.signals import TimedOut, stopping
from fedspan.benchmark.training.process import set_up_process
from fedspan.benchmark.training.workers import actors
from fedspan.benchmark.training.workers.spread import start_workers, stop_workers
from fedspan.tasks.fleets.dropout import Dropout
from tests.cli.conftest import QUICK, finish, records
from tests.faults.conftest import ray_nodes
from tests.helpers import how, start, toy_cell, trained, wait_for
from tests.toys import Blobs, NormNet, PlainNet, toy, toy_stacks
from tests.training.test_workers import agree, outcome
from tests.training.test_workers import finish as train

pytestmark = pytest.mark.slow

STACKS = toy_stacks()
CELLS = {
    "rows of clients": toy_cell(*STACKS["server and client state"], model=NormNet(), participation=0.7),
    "own models and a fleet": toy_cell(*STACKS["own BatchNorm"], model=NormNet(), fleet=Dropout(rate=0.4)),
    "calibration": toy_cell(*STACKS["frozen head, calibrated"]),
}


@contextlib.contextmanager
def connected(nodes):
    """Have this process and those that it starts use a cluster."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        for name, value in nodes.variables.items():
            patch.setenv(name, value)
        connect(how())
        try:
            yield
        finally:
            ray.shutdown()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory, toys):
    """Two nodes that know the toys."""
    with ray_nodes(tmp_path_factory.mktemp("ray"), toys) as nodes:
        yield nodes


@pytest.fixture
def cluster(nodes):
    """The cluster of two nodes, which this process is connected to."""
    with connected(nodes):
        yield


@contextlib.contextmanager
def spread(cell, workers=2, **more):
    """Start a cell on so many actors."""
    set_up_process(how())
    run = start(cell, launcher="ray", **more)
    start_workers(run, workers)
    try:
        yield run
    finally:
        stop_workers(run)


def told_by(worker, tell):
    """Return what `tell` returns in the process of an actor, which is on this machine."""
    import ray

    return ray.get(worker._handle.__ray_call__.remote(lambda worker: tell()))


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_two_nodes_give_the_bits_of_one_process(cluster, cell):
    with spread(cell) as run:
        run.advance()
        for worker in run.trainer.pool.workers:  # the first alone trains the cell before the second is prepared
            told_by(worker, os.getpid)
        train(run)
        agree(run, outcome(trained(cell)))
        assert all(worker.ready for worker in run.trainer.pool.workers)
        assert run.meter.worker_seconds > 0


def test_each_worker_has_the_gpu_that_it_asks_for_and_sees_no_other(cluster):
    cell = CELLS["rows of clients"]
    with spread(cell, gpus=1, executor="vmap") as run:
        train(run)
        agree(run, outcome(trained(cell, executor="vmap")))
        seen = [told_by(one, lambda: os.environ["CUDA_VISIBLE_DEVICES"]) for one in run.trainer.pool.workers]
    assert seen == ["0", "0"]  # of two nodes


def disturbed(run, disturb):
    """Finish a run; `disturb` is called after the first client of the second round."""
    while not run.finished:
        ticks = []

        def tick(ticks=ticks):
            ticks.append(run.state.round)
            if ticks == [1]:
                disturb()

        run.advance(tick)


def test_a_killed_actor_costs_only_its_clients(cluster):
    cell = toy_cell(*STACKS["server and client state"], clients=9, dataset=Blobs(train=300))
    with spread(cell) as run:
        run.advance()
        victim = run.trainer.pool.workers[0]
        disturbed(run, lambda: os.kill(told_by(victim, os.getpid), signal.SIGKILL))
        agree(run, outcome(trained(cell)))
        assert victim not in run.trainer.pool.workers
        assert len(run.trainer.pool.workers) == 2


def test_a_node_that_is_lost_costs_only_its_clients(tmp_path):
    cell = toy_cell(*STACKS["server and client state"], clients=9, dataset=Blobs(train=300))
    with ray_nodes(tmp_path) as nodes, connected(nodes), spread(cell) as run:
        disturbed(run, nodes.remove_one)
        agree(run, outcome(trained(cell)))


# refusals -----------------------------------------------------------------------------------------


def refused(cell):
    """Return why a cell cannot be trained on two actors."""
    with spread(cell) as run, pytest.raises(UserError) as caught:
        run.advance()
    return str(caught.value)


def test_a_worker_with_other_versions_is_refused(cluster, monkeypatch):
    origin = actors.origin
    monkeypatch.setattr(actors, "origin", lambda *cell: origin(*cell) | {"versions": {"torch": "1.0"}})
    said = rf"the worker on \S+ would compute different bits: its torch {re.escape(versions()['torch'])}, here 1.0"
    assert re.fullmatch(said, refused(toy_cell()))


@toy("dataset", "toy_absent")
class Absent(Blobs):
    """Images that one process alone has."""

    driver: int = 0

    def load(self, cache):
        if os.getpid() != self.driver:
            raise UserError("images.npz is missing; run fedspan data fetch")
        return super().load(cache)


def test_a_worker_without_the_data_is_refused(cluster):
    said = refused(toy_cell(dataset=Absent(driver=os.getpid())))
    assert re.fullmatch(r"a worker on \S+ cannot prepare the cell: images.npz is missing; run fedspan data fetch", said)


@toy("dataset", "toy_lethal")
class Lethal(Blobs):
    """Images that end every process but one."""

    driver: int = 0

    def load(self, cache):
        if os.getpid() != self.driver:
            os._exit(1)
        return super().load(cache)


def test_workers_that_end_before_they_are_ready_fail_the_cell(cluster):
    assert refused(toy_cell(dataset=Lethal(driver=os.getpid()))).startswith("3 workers ended before they were ready: ")


def test_a_model_too_large_for_the_object_store_is_refused(cluster):
    said = refused(toy_cell(model=PlainNet(width=400_000)))
    assert said.startswith(
        "the data sent to clients take 116 MiB, the smallest object store of the Ray cluster has 80 MiB"
    )


@pytest.mark.parametrize(("needs", "what"), [({"threads": 2}, "cores"), ({"gpus": 2}, "GPUs")])
def test_a_timeout_ends_the_wait_for_what_no_node_has(cluster, caplog, monkeypatch, needs, what):
    monkeypatch.setattr(actors, "PATIENCE", 0.01)
    with spread(toy_cell(), **needs) as run, pytest.raises(TimedOut), stopping(0.5):
        run.advance()
    assert [one.getMessage() for one in caplog.records] == [
        f"no worker is ready yet: does the Ray cluster have {what} free?"
    ]


# the command --------------------------------------------------------------------------------------


def test_sigterm_saves_a_cell_and_the_same_command_goes_on_with_it(cluster, start, here):
    cell = ("run", *QUICK, "checkpoint_seconds=0", "algorithm=toy_held", "algorithm.at=1")
    ours = (*cell, f"algorithm.until={here}/go", "workers=2", "launcher=ray")
    first = start(*ours)
    wait_for(lambda: list(Path("results/checkpoints").glob("*")))
    first.send_signal(signal.SIGTERM)
    Path("go").touch()
    assert finish(first).status == 143
    assert not records()
    second = finish(start(*ours))
    assert second.status == 0, second.err
    assert finish(start(*cell, f"algorithm.until={here}/go", "paths.results=alone")).status == 0
    assert records() == records("alone")
