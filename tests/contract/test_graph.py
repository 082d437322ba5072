"""`executor=graph`: recorded steps, lanes, and what happens when a step cannot be recorded or memory ends.

Recordings are tapes on CPU here, which do the same operations again on the same memory, as CUDA graphs do.
"""

import gc
import logging

import pytest
import torch

from fedspan.benchmark.component import Component, Step
from fedspan.benchmark.errors import Diverged, UserError
from fedspan.benchmark.training.executors import graph
from fedspan.benchmark.training.executors.graph import EAGER, Graph, ReplayLane, Width
from fedspan.benchmark.training.executors.loop import RoundClients
from fedspan.methods.algorithms.elastic import Elastic
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.methods.algorithms.fedproto import FedProto
from fedspan.methods.algorithms.scaffold import Scaffold

from ..helpers import start, toy_cell, trained, weights
from ..toys import NormNet, PlainNet, toy
from .tape import Tapes

LONG = {"rounds": 5, "local_epochs": 3}


@pytest.fixture(autouse=True)
def graphs_on_cpu(monkeypatch):
    monkeypatch.setattr(Graph, "machine", Tapes)


def advanced(cell, width=1):
    run = start(cell, executor="graph")
    run.executor.width.now, run.executor.width.settled = width, True
    while not run.finished:
        run.advance()
    return run


def test_a_kind_of_step_is_recorded_once_and_replayed_from_then_on(monkeypatch):
    run = start(toy_cell(protocol=LONG), executor="graph")
    run.executor.width.settled = True
    eager = []
    step = run.trainer.step
    monkeypatch.setattr(run.trainer, "step", lambda *arguments: eager.append(1) or step(*arguments))
    while not run.finished:
        run.advance()
    [lane] = run.executor.lanes
    seen = {kind: recording.seen for kind, recording in lane.recordings.items()}
    assert sum(seen.values()) == run.meter.steps > 10 * len(eager)
    assert len(eager) == sum(min(uses, EAGER + 1) for uses in seen.values())
    assert run.executor.device.recorded == sum(uses > EAGER for uses in seen.values())


def check_like_loop(cell, run):
    """Check that a run ends with the weights that `loop` gives."""
    reference = trained(cell).state.pack()
    for path, leaf in run.state.pack().items():
        assert torch.allclose(leaf, reference[path], rtol=1e-10, atol=1e-12), path


@pytest.mark.parametrize("stack", [(FedAvg(),), (Scaffold(),)], ids=["fedavg", "scaffold"])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_lanes_change_no_bit_and_schedules_reach_recorded_steps(stack, schedule):
    cell = toy_cell(*stack, model=NormNet(), protocol={**LONG, "schedule": schedule, "precision": "float64"})
    runs = [advanced(cell, width) for width in (1, 2, 3, 8)]
    assert len({weights(run) for run in runs}) == 1
    assert [len(run.executor.lanes) for run in runs] == [1, 2, 3, 8]
    check_like_loop(cell, runs[0])


def test_clients_that_are_drawn_anew_each_round_give_the_numbers_of_loop():
    cell = toy_cell(participation=0.5, protocol={**LONG, "precision": "float64"})
    check_like_loop(cell, advanced(cell, 2))


@toy("addon", "toy_warm_up")
class WarmUp(Component):
    """Toy: a penalty that grows with the rounds."""

    def penalty(self, step: Step) -> torch.Tensor:
        return 0.01 * step.round * step.features.square().mean()


def test_a_recorded_step_sees_the_round_that_it_is_replayed_in():
    cell = toy_cell(FedAvg(), WarmUp(), protocol={**LONG, "precision": "float64"})
    check_like_loop(cell, advanced(cell))


@toy("addon", "toy_reader")
class Reader(Component):
    """Toy: branches on a value, which hooks must not."""

    def penalty(self, step: Step) -> torch.Tensor:
        norm = step.features.square().mean()
        return norm if float(norm.detach()) > 1 else 2 * norm


@pytest.mark.parametrize("model", [PlainNet(), NormNet()], ids=["plain", "batchnorm"])
def test_a_step_that_reads_a_value_runs_unrecorded_and_says_so(caplog, model):
    cell = toy_cell(FedAvg(), Reader(), protocol=LONG, model=model)
    with caplog.at_level(logging.WARNING):
        run = advanced(cell)
    assert weights(run) == weights(trained(cell))
    assert "a value is read while a step is recorded" in caplog.text
    assert not any(recording.replay for lane in run.executor.lanes for recording in lane.recordings.values())


@toy("addon", "toy_clipper")
class Clipper(Component):
    """Toy: branches on the value of a gradient, when the backward pass of a recording has already run."""

    def grads(self, grads, step: Step):
        norm = sum(leaf.square().sum() for leaf in grads.values())
        return {path: leaf / 2 for path, leaf in grads.items()} if float(norm) > 1e-3 else grads


def test_a_recording_that_fails_late_leaves_nothing_to_the_step_that_runs_instead(caplog):
    cell = toy_cell(FedAvg(), Clipper(), protocol=LONG)
    with caplog.at_level(logging.WARNING):
        run = advanced(cell)
    assert "a value is read while a step is recorded" in caplog.text
    assert weights(run) == weights(trained(cell))


class Small(Tapes):
    """A device on which the recordings of two lanes fit, and not of more; it is full once a client is done."""

    done = False
    error = torch.OutOfMemoryError, "no room"

    def __init__(self, device):
        super().__init__(device)
        self.queues, self.released, self.kept = 0, 0, []

    def queue(self):
        self.queues += 1
        return self.queues

    def record(self, work, queue):
        if queue > 2 and self.done:
            kind, words = self.error
            raise kind(words)
        return super().record(work, queue)

    def release(self):
        super().release()
        self.released += 1
        self.kept.append(sum(isinstance(one, ReplayLane) for one in gc.get_objects()))


@pytest.mark.parametrize("error", [Small.error, (RuntimeError, "CUDA error: out of memory")])
def test_a_full_device_takes_fewer_lanes_and_goes_on(monkeypatch, caplog, error):
    monkeypatch.setattr(Graph, "machine", Small)
    monkeypatch.setattr(Small, "error", error)
    gc.collect()
    cell = toy_cell(Scaffold(), protocol=LONG)
    run, ticks = start(cell, executor="graph"), []
    run.executor.width.now, run.executor.width.settled = 4, True

    def tick():
        ticks.append(1)
        run.executor.device.done = True

    while not run.finished:
        run.advance(tick)
    assert len(run.executor.lanes) == run.executor.width.now == 2
    assert (run.executor.device.released, run.executor.device.kept) == (1, [2])  # aborted lanes hold no memory then
    assert weights(run) == weights(advanced(cell, 1))
    assert len(ticks) == run.meter.visits  # a client that was done is not trained again
    assert "out of memory on cpu: continuing with 2 lanes" in caplog.text


@pytest.mark.parametrize("method", [Scaffold(), Elastic(), FedProto()], ids=lambda method: method.name)
def test_what_a_full_device_aborts_is_counted_once(monkeypatch, method):
    """Elastic computes in `client_start`, FedProto in `client_end`."""
    monkeypatch.setattr(Graph, "machine", Small)
    cell = toy_cell(method, protocol=LONG)
    run = start(cell, executor="graph")
    run.executor.width.now, run.executor.width.settled = 4, True
    while not run.finished:
        run.advance(lambda: setattr(run.executor.device, "done", True))
    assert run.executor.device.released == 1
    assert (run.meter.flops, run.meter.steps) == ((alone := advanced(cell)).meter.flops, alone.meter.steps)


def test_which_client_diverged_does_not_depend_on_lanes():
    cell = toy_cell(protocol={**LONG, "lr": 1e9})
    said = []
    for width in (1, 2, 3, 8):
        with pytest.raises(Diverged) as found:
            advanced(cell, width)
        said.append(str(found.value))
    with pytest.raises(Diverged) as found:
        trained(cell)
    assert set(said) == {str(found.value)}


def test_few_results_wait_on_the_device_for_those_of_earlier_clients(monkeypatch):
    monkeypatch.setattr(graph, "MOST_WAITING", 2)
    run, ticks, waiting = start(toy_cell(), executor="graph"), [], []
    for taken, _ in enumerate(run.executor.each(run.state, RoundClients(range(6), tick=lambda: ticks.append(1)))):
        waiting.append(len(ticks) - taken)
    assert waiting == [2, 1, 2, 1, 2, 1]


def test_a_round_of_no_clients_needs_one_worker():
    run = start(toy_cell(), executor="graph")
    assert [run.executor.together(0, workers) for workers in (1, 2)] == [1, 1]


def test_a_device_that_is_full_with_one_lane_fails(monkeypatch):
    class Full(Tapes):
        def record(self, work, queue):
            raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(Graph, "machine", Full)
    with pytest.raises(torch.OutOfMemoryError):
        trained(toy_cell(protocol=LONG), executor="graph")


def widths(rates, clients=10, lane_bytes=1, free=10**9):
    """Return the widths of rounds on a device that trains `rates[lanes]` images per second."""
    width, tried, there = Width(), [], 0
    for _ in range(12):
        tried.append(width.now)
        added = max(0, width.now - there)
        there = width.now
        width.learn(rates[width.now], clients, added, added * lane_bytes, free - there * lane_bytes)
    return tried


def test_lanes_double_while_that_is_faster():
    assert widths({1: 100, 2: 180, 4: 300, 8: 290}) == [1, 1, 2, 2, 4, 4, 8, 8, 4, 4, 4, 4]
    assert widths({1: 100, 2: 101}) == [1, 1, 2, 2] + [1] * 8


def test_lanes_are_as_many_as_memory_and_clients_allow():
    growing = {2**k: 100 * 2**k for k in range(8)}
    assert max(widths(growing, clients=100)) == graph.LANES
    assert max(widths(growing, clients=5)) == 4
    assert max(widths(growing, lane_bytes=300, free=1000)) == 2


def test_the_first_rounds_of_a_width_do_not_decide():
    width = Width()
    width.learn(1, 10, 1, 0, 10**9)
    assert (width.now, width.best) == (1, 0.0)


def test_without_cuda_the_executor_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(Graph, "machine", graph.Cuda)
    with pytest.raises(UserError, match="executor=graph records CUDA graphs, and this is device=cpu; use"):
        start(toy_cell(), executor="graph")


def test_every_hook_sees_scalars_or_numbers_for_round_and_rate():
    seen = []

    @toy("addon", "toy_watcher")
    class Watcher(Component):
        def penalty(self, step: Step) -> torch.Tensor:
            seen.append((step.round, step.lr))
            return step.features.sum() * 0

    for executor in ("loop", "graph"):
        trained(toy_cell(FedAvg(), Watcher(), protocol={"rounds": 1}), executor=executor)
    numbers = [pair for pair in seen if not isinstance(pair[0], torch.Tensor)]
    tensors = [pair for pair in seen if isinstance(pair[0], torch.Tensor)]
    assert {round for round, _ in numbers} == {0}
    assert {(float(round), float(lr)) for round, lr in tensors} == {(0.0, numbers[0][1])}
