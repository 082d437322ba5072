"""Several workers for one cell: the bits of one process, whatever their number, order, deaths and restarts."""

import contextlib
import dataclasses
import gc
import itertools
import os
import random
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedspan.benchmark.component import Component
from fedspan.benchmark.errors import Diverged, Incompatible, UserError
from fedspan.benchmark.records.model import core_seconds
from fedspan.benchmark.registry import plugins
from fedspan.benchmark.running.cell_run import run_cell
from fedspan.benchmark.running.job import reason_of
from fedspan.benchmark.spec.diagnostics import Diagnostics
from fedspan.benchmark.task import Partition
from fedspan.benchmark.training.evaluation import score
from fedspan.benchmark.training.executors.graph import Graph
from fedspan.benchmark.training.process import set_up_process
from fedspan.benchmark.training.run import Run
from fedspan.benchmark.training.saving import resume, save
from fedspan.benchmark.training.scoring import score_stages
from fedspan.benchmark.training.workers import pool as pools
from fedspan.benchmark.training.workers import spread as spreads
from fedspan.benchmark.training.workers.messages import ALIGNMENT, pack, unpack
from fedspan.benchmark.training.workers.regions import Region
from fedspan.benchmark.training.workers.schedule import Schedule, round_seconds
from fedspan.benchmark.training.workers.spread import MESSAGE_SECONDS, Spread, start_workers, stop_workers, train
from fedspan.benchmark.tree import clone, nbytes, scale
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.tasks.fleets.dropout import Dropout
from fedspan.tasks.fleets.stragglers import Stragglers
from fedspan.tasks.partitions.personal import Personal
from tests.contract.tape import Tapes
from tests.helpers import counted, how, numbers, start, toy_cell, trained, wait_for, weights
from tests.toys import Blobs, NormNet, toy, toy_stacks
from tests.training.rounds import simulated

REGISTERED = {
    cls.name: (cls(),) if kind == "algorithm" else (FedAvg(), cls())
    for kind in ("algorithm", "addon")
    for cls in plugins(kind).values()
}
STACKS = REGISTERED | toy_stacks()
MANY = {"clients": 9, "dataset": Blobs(train=300)}  # the smallest has one image, and eight workers have something to do


@toy("partition", "even")
class Even(Partition):
    """Clients of equal sizes."""

    def split(self, labels, classes, clients, rng):
        return np.array_split(rng.permutation(len(labels)), clients)


@pytest.fixture(autouse=True)
def settled():
    set_up_process(how())


@contextlib.contextmanager
def spread(cell, workers, **more):
    """Start a cell on so many workers."""
    run = start(cell, **more)
    start_workers(run, workers)
    try:
        yield run
    finally:
        stop_workers(run)


def finish(run):
    while not run.finished:
        run.advance()


def outcome(run):
    """Return all that a run leaves, but for times."""
    scores = score_stages(run)
    return weights(run), run.round_digests, run.stage_digests, scores, run.curve, run.measured, counted(run)


def agree(run, alone):
    """Hold a finished run to what one process made of its cell."""
    for mine, other in zip(outcome(run), alone, strict=True):
        assert mine == other


# the same bits ------------------------------------------------------------------------------------

SOME = (
    "fedavg", "scaffold", "fedbn", "ditto", "quantise", "frozen head, calibrated", "own heads at the end",
    "single updates", "stack of the later hooks",
)  # fmt: skip


@pytest.mark.parametrize("name", SOME)
def test_three_workers_give_the_bits_of_one_process(name):
    cell = toy_cell(*STACKS[name], model=NormNet(), protocol={"rounds": 2}, participation=0.7)
    with spread(cell, 3) as run:
        finish(run)
        agree(run, outcome(trained(cell)))


@pytest.mark.slow
@pytest.mark.parametrize("name", STACKS)
def test_any_number_of_workers_gives_the_bits_of_one_process(name):
    cell = toy_cell(*STACKS[name], model=NormNet(), participation=0.7, **MANY)
    try:
        alone = outcome(trained(cell))
    except Incompatible as reason:
        pytest.skip(str(reason))
    for workers in (2, 3, 8):
        with spread(cell, workers) as run:
            finish(run)
            agree(run, alone)


@pytest.mark.parametrize("clients", [23, 21])  # the last stack of vmap has three clients, or one, which is not stacked
@pytest.mark.parametrize(("executor", "messages"), [("vmap", 3), ("graph", 3), ("loop", None)])
def test_workers_train_clients_side_by_side_as_one_process_does(monkeypatch, executor, messages, clients):
    monkeypatch.setattr(Graph, "machine", Tapes)
    cell = toy_cell(
        *STACKS["moon"], model=NormNet(), clients=clients, dataset=Blobs(train=300), partition=Even(),
        fleet=Dropout(rate=0.2), diagnostics=Diagnostics(alignment=True),
    )  # fmt: skip
    with spread(cell, 3, executor=executor) as run:
        sent, each = [], run.trainer.pool.each
        if executor == "graph":
            run.local_executor.width.now, run.local_executor.width.settled = 3, True  # lanes

        def noting(state, function, calls, *others, **more):
            sent.append((function, len(calls)))
            return each(state, function, calls, *others, **more)

        monkeypatch.setattr(run.trainer.pool, "each", noting)
        finish(run)
        agree(run, outcome(trained(cell, executor=executor)))
    assert next(number for function, number in sent if function is train) == (messages or clients)


def test_workers_end_even_if_ending_the_first_is_interrupted(monkeypatch):
    run = start(toy_cell(**MANY))
    start_workers(run, 3)
    run.advance()
    pids = [worker.pid for worker in run.trainer.pool.workers]

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(run.trainer.pool.workers[0], "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stop_workers(run)
    for pid in pids:
        wait_for(lambda pid=pid: os.waitpid(pid, os.WNOHANG)[0] == pid)


def test_the_message_to_a_client_is_made_when_a_worker_gets_it(monkeypatch):
    """Each may be a model: those of all clients together need not fit into memory."""
    made, at_first = [], []
    real = spreads.received
    monkeypatch.setattr(spreads, "received", lambda *of: made.append(of) or real(*of))
    with spread(toy_cell(*STACKS["fedamp"], model=NormNet()), 2) as run:
        each = run.trainer.pool.each
        run.trainer.pool.each = lambda *call, **more: at_first.append(len(made)) or each(*call, **more)
        run.executor.run(run.state, run.participants())
    assert at_first == [0]
    assert len(made) == len(run.participants())


@pytest.mark.parametrize("fleet", [Stragglers(share=0.5), Dropout(rate=0.4)], ids=["stragglers", "dropout"])
def test_a_fleet_decides_the_same_for_workers(fleet):
    cell = toy_cell(*STACKS["scaffold"], model=NormNet(), fleet=fleet, unseen=0.2, partition=Personal())
    with spread(cell, 3) as run:
        finish(run)
        agree(run, outcome(trained(cell)))
        assert run.meter.cut + run.meter.lost > 0


def test_diagnostics_are_those_of_one_process():
    asked = Diagnostics(alignment=True, spectra=True, penalties=True, shares=True, clients=(1, 3))
    cell = toy_cell(*STACKS["client memory"], diagnostics=asked)
    with spread(cell, 3) as run:
        finish(run)
        agree(run, outcome(trained(cell)))


def test_the_number_of_workers_may_change_between_rounds():
    cell = toy_cell(*STACKS["server and client state"], protocol={"rounds": 5})
    with spread(cell, 3) as run:
        for workers in (3, 2, 1, 4, 2):
            start_workers(run, workers)
            run.advance()
        assert run.workers == 4
        assert run.meter.worker_seconds > 0
        alone, both = run.meter.processor_seconds, run.meter.as_dict()["processor_seconds"]
        assert both == pytest.approx(alone + run.meter.worker_seconds, abs=1e-3)
        agree(run, outcome(trained(cell)))


def test_workers_answer_for_the_state_that_they_are_asked_about():
    alone = start(toy_cell())
    other = dataclasses.replace(alone.state, params=scale(alone.state.params, 2.0))
    with spread(toy_cell(), 2) as run:
        for state in (other, alone.state, other):
            assert score(run.trainer, state) == score(alone.trainer, state)


def test_a_cell_that_goes_on_in_one_process_remembers_its_workers(tmp_path):
    with spread(toy_cell(), 2) as first:
        first.advance()
        save(first, tmp_path / "checkpoint")
    run = start(toy_cell())
    assert resume(run, tmp_path / "checkpoint")
    assert run.workers == first.workers == 2


def test_a_cell_goes_on_with_workers_from_a_checkpoint_of_one_process(tmp_path):
    cell = toy_cell(*STACKS["scaffold"])
    first = start(cell)
    first.advance()
    save(first, tmp_path / "checkpoint")
    run = start(cell)
    assert resume(run, tmp_path / "checkpoint")
    start_workers(run, 3)
    try:
        finish(run)
        agree(run, outcome(trained(cell)))
    finally:
        stop_workers(run)


def children():
    """Return the processes that this one has started."""
    return {child for task in Path("/proc/self/task").iterdir() for child in (task / "children").read_text().split()}


def test_a_record_says_how_many_workers_there_were_and_is_else_that_of_one(tmp_path):
    cell = toy_cell(*STACKS["frozen head, calibrated"])
    before = children()
    shared = run_cell(cell, how(tmp_path / "shared"), share=lambda run: 2)
    assert children() == before
    alone = run_cell(cell, how(tmp_path / "alone"))
    assert numbers(shared) == numbers(alone)
    assert shared["provenance"]["workers"] == 2
    assert "workers" not in alone["provenance"]
    assert 0 < shared["compute"]["processor_seconds"] == core_seconds(shared)


def test_the_most_memory_that_any_worker_took_on_a_gpu_is_the_cells(monkeypatch):
    monkeypatch.setattr(Run, "note_peak", lambda run: setattr(run.meter, "peak_memory", os.getpid()))  # as if
    with spread(toy_cell(), 2) as run:
        run.advance()
        assert run.meter.peak_memory == max(worker.pid for worker in run.trainer.pool.workers)


# deaths -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_killed_workers_leave_no_trace(seed):
    cell = toy_cell(*STACKS["server and client state"], protocol={"rounds": 4}, **MANY)
    draws, killed = random.Random(seed), []
    deadly = {round: draws.randrange(9) for round in draws.sample(range(4), 2)}
    with spread(cell, 3) as run:
        while not run.finished:
            ticks, fatal = [], deadly.get(run.state.round)

            def tick(ticks=ticks, fatal=fatal):
                if len(ticks) == fatal:
                    victim = draws.choice(run.trainer.pool.workers)
                    os.kill(victim.pid, signal.SIGKILL)
                    killed.append(victim)
                ticks.append(1)

            run.advance(tick)
            assert len(ticks) == 9
        agree(run, outcome(trained(cell)))
        assert len(killed) == 2
        assert not set(killed) & set(run.trainer.pool.workers)
        assert len(run.trainer.pool.workers) == 3


@toy("addon", "toy_fatal")
class Fatal(Component):
    """Ends every worker that trains the client of 16 images."""

    driver: int = 0

    def client_end(self, delta, local):
        if local.n == 16 and os.getpid() != self.driver:
            os._exit(1)
        return delta, {}, dict(local.client)


def test_a_client_that_ends_every_worker_fails_the_cell_and_not_the_driver(caplog):
    with spread(toy_cell(FedAvg(), Fatal(os.getpid())), 2) as run:
        assert 16 in map(run.trainer.data.size, run.participants())
        with pytest.raises(UserError, match="3 workers died at the same piece of work; is there enough memory"):
            run.advance()
    assert [one.getMessage() for one in caplog.records] == ["a worker died; what it computed is computed again"] * 3


def test_a_round_that_ended_in_an_error_leaves_nothing_behind_for_what_comes_next():
    cell, kept, left = toy_cell(*STACKS["own BatchNorm"], model=NormNet(), partition=Even()), [], []
    for workers in (1, 2):
        with spread(cell, workers) as run:
            with pytest.raises(KeyError) as caught:
                run.advance(lambda: {}["tick"])
            kept.append(caught)  # with its frames, which still wait for results
            left.append((score(run.trainer, run.state), weights(run)))  # each client has a model of its own
    assert left[0] == left[1]


def test_workers_that_cannot_be_started_are_refused_in_one_line(monkeypatch):
    def fork():
        raise OSError(24, "Too many open files")

    with spread(toy_cell(), 2) as run:
        monkeypatch.setattr(os, "fork", fork)
        before = os.listdir("/proc/self/fd")
        with pytest.raises(UserError, match=r"^workers=2 cannot be started here: .*Too many open files; choose fewer$"):
            run.advance()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= len(before), "files of workers that never were"


def test_workers_end_with_their_driver():
    """The driver is killed, so that it can tell nobody."""
    read, write = os.pipe()
    driver = os.fork()
    if driver == 0:
        os.close(read)
        run = start(toy_cell())
        start_workers(run, 2)
        run.advance()
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(write)
    os.waitpid(driver, 0)
    with os.fdopen(read) as lasting:
        assert lasting.read() == ""  # its end comes when the last worker has gone


# errors -------------------------------------------------------------------------------------------


@toy("addon", "toy_broken")
class Broken(Component):
    """Raises at the second and the last client."""

    def penalty(self, step):
        if int(step.counts.sum()) in (4, 38):
            raise KeyError("velocity")
        return torch.zeros(())


class Unsendable(Exception):
    """Cannot be pickled: it asks for what it does not pass on."""

    def __init__(self, one, two):
        super().__init__(one)


@toy("addon", "toy_unsendable")
class RaisesUnsendable(Component):
    """Raises what no process can send."""

    def penalty(self, step):
        raise Unsendable(1, 2)


@pytest.mark.parametrize(
    ("stack", "protocol", "kind"),
    [
        ((FedAvg(), Broken()), {}, KeyError),
        ((FedAvg(),), {"lr": 1e30}, Diverged),
        ((FedAvg(), RaisesUnsendable()), {}, Exception),
    ],
    ids=["a hook's error", "divergence", "an error that cannot be sent"],
)
def test_an_error_is_that_of_one_process(stack, protocol, kind):
    cell, reasons = toy_cell(*stack, protocol=protocol), []
    for workers in (1, 3):
        with spread(cell, workers) as run, pytest.raises(kind) as caught:
            finish(run)
        reasons.append(reason_of(caught.value))
    assert reasons[0] == reasons[1]


# messages of several clients ----------------------------------------------------------------------


def groups_of(clients, workers, seconds, together=1):
    """Return the clients of each message of a round, after one in which a client took so many seconds."""
    executor = SimpleNamespace(trainer=None, together=lambda clients, workers: together)
    spread = Spread(executor, SimpleNamespace(size=workers))
    spread.seconds = seconds
    return spread.groups(list(range(clients)))


@given(st.integers(0, 300), st.integers(2, 20), st.floats(1e-4, 10), st.sampled_from([1, 10]))
def test_every_client_is_in_one_message_in_order_and_whole_stacks_are(clients, workers, seconds, together):
    groups = groups_of(clients, workers, seconds, together)
    assert list(itertools.chain(*groups)) == list(range(clients))
    assert all(len(group) % together == 0 for group in groups[:-1])
    sizes = [len(group) for group in groups]
    assert sizes == sorted(sizes, reverse=True)
    assert all(size <= max(together, MESSAGE_SECONDS / seconds, 1) for size in sizes)
    assert all(size <= together for size in sizes[-workers:])


def test_many_quick_clients_go_in_few_messages_and_slow_ones_alone():
    assert [len(group) for group in groups_of(100, 2, 0.0125)] == [8] * 9 + [7, 5, 4, 3, 2, 1, 1, 1, 1, 1, 1, 1]
    assert [len(group) for group in groups_of(100, 2, 0.06)] == [1] * 100
    assert [len(group) for group in groups_of(7, 2, 0.001)] == [1] * 7


CROWD = {"clients": 40, "dataset": Blobs(train=200), "partition": Even()}  # more messages than workers have places


@pytest.mark.parametrize(
    "name", ["single updates", "messages to single clients", "server and client state", "own BatchNorm"]
)
def test_what_lasts_of_a_message_outlives_the_next_one(name):
    cell = toy_cell(*STACKS[name], model=NormNet(), **CROWD)
    with spread(cell, 2) as run:
        finish(run)
        agree(run, outcome(trained(cell)))


def test_as_many_bytes_may_wait_as_the_largest_messages_have():
    with spread(toy_cell(**CROWD), 2) as run:
        run.executor.seconds, asked, each = MESSAGE_SECONDS / 5, [], run.trainer.pool.each
        run.trainer.pool.each = lambda *call, **more: asked.append(call) or each(*call, **more)
        run.executor.run(run.state, run.participants())
        (_, _, calls, _, held) = asked[0]
        assert max(len(visits.clients) for _, _, visits, *_ in calls) == 5
        assert held == 5 * (nbytes(run.state.params) + nbytes(run.state.buffers))


def filled(value):
    return torch.full((1000,), float(value))


def test_results_that_are_not_lent_last():
    with spread(toy_cell(), 2) as run:
        found = list(run.trainer.pool.each(run.state, filled, [(n,) for n in range(20)], [1.0] * 20))
    assert [leaf.unique().tolist() for leaf in found] == [[n] for n in range(20)]


def test_before_the_first_round_nobody_knows_how_quick_clients_are():
    with spread(toy_cell(), 2) as run:
        assert [len(group) for group in run.executor.groups(range(100))] == [1] * 100
        run.executor.run(run.state, run.participants())
        assert 0 < run.executor.seconds < 60


# schedule -----------------------------------------------------------------------------------------

costs_lists = st.lists(st.integers(0, 100), min_size=1, max_size=30)


@given(costs=costs_lists, window=st.integers(1, 40), seed=st.integers(0, 10**6))
def test_every_job_goes_out_once_none_far_before_its_turn(costs, window, seed):
    schedule, turn, out, done, draws = Schedule(costs, window), 0, set(), set(), random.Random(seed)
    while turn < len(costs):
        number = schedule.take(turn) if draws.random() < 0.7 or not out - done else None
        if number is not None:
            assert number < turn + window
            assert number not in out
            out.add(number)
        elif out - done:
            ended = draws.choice(sorted(out - done))
            if draws.random() < 0.2:
                schedule.put_back(ended)
                out.remove(ended)
            else:
                done.add(ended)
        while turn in done:
            turn += 1
    assert out == set(range(len(costs)))
    assert schedule.left == 0


@given(costs=costs_lists, window=st.integers(1, 40))
def test_of_those_that_may_go_the_longest_goes(costs, window):
    schedule = Schedule(costs, window)
    found = [schedule.take(0) for _ in costs]
    allowed = range(min(window, len(costs)))
    assert [n for n in found if n is not None] == sorted(allowed, key=lambda number: (-costs[number], number))


@given(costs=st.lists(st.integers(1, 1000), min_size=1, max_size=200), workers=st.integers(1, 64))
def test_a_simulated_round_takes_what_the_formula_says_and_less_than_one_client_more(costs, workers):
    least, most = round_seconds(costs, workers), sum(costs) / workers + (1 - 1 / workers) * max(costs)  # Graham 1969
    assert least - 1e-6 <= simulated(costs, workers) <= max(least, most) + 1e-6


def test_a_round_of_64_workers_lasts_as_long_as_their_share_or_the_longest_client():
    even = [1.0] * 640
    assert simulated(even, 64) == round_seconds(even, 64) == 10
    assert simulated([*even, 50.0], 64) == round_seconds([*even, 50.0], 64) == 50


def test_few_results_wait_however_long_the_first_client_takes(monkeypatch):
    monkeypatch.setattr(pools, "HELD_BYTES", 0)
    cell = toy_cell(clients=60, dataset=Blobs(train=120), partition=Even(), protocol={"rounds": 1})
    waiting, take = [], pools.Pool._take

    def noting(pool, worker, schedule, arrived, *others):
        take(pool, worker, schedule, arrived, *others)
        waiting.append(len(arrived))

    monkeypatch.setattr(pools.Pool, "_take", noting)
    with spread(cell, 2) as run:
        sums, _ = run.executor.run(run.state, run.participants())
    assert sums.participants == 60
    assert max(waiting) <= 2 * pools.SLOTS * 2


# messages and memory ------------------------------------------------------------------------------

tensors = st.sampled_from(
    [
        torch.arange(6.0).reshape(2, 3), torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
        torch.tensor(3.0), torch.zeros(0, 5), torch.arange(5), torch.rand(3, 3, dtype=torch.float64).T,
        torch.tensor([True, False]), torch.zeros(1).expand(4), torch.arange(9.0)[::2], torch.ones(2).bfloat16(),
    ]
)  # fmt: skip


@settings(max_examples=25)
@given(
    trees=st.dictionaries(st.text(max_size=2), st.dictionaries(st.text(max_size=2), tensors, max_size=5), max_size=3)
)
def test_a_message_arrives_as_it_was_sent_in_layout_too(trees):
    packed = pack({"numbers": [1, 2.5, None], "trees": trees})
    memory = torch.empty(packed.size, dtype=torch.uint8)
    packed.write(memory)
    for copy in (False, True):
        found = unpack(packed.head, memory, copy=copy)
        assert found["numbers"] == [1, 2.5, None]
        assert found["trees"].keys() == trees.keys()
        for name, tree in trees.items():
            copied = clone(tree)
            for path, leaf in found["trees"][name].items():
                assert (leaf.dtype, leaf.shape, leaf.stride()) == (
                    copied[path].dtype, copied[path].shape, copied[path].stride()
                )  # fmt: skip
                assert torch.equal(leaf, tree[path])
                assert copy or leaf.numel() == 0 or (leaf.data_ptr() - memory.data_ptr()) % ALIGNMENT == 0


class OnGpu(torch.Tensor):
    """A tensor that says it lies on a GPU."""

    is_cuda = True


def test_what_comes_from_a_gpu_is_put_on_the_receivers_and_nothing_else():
    packed = pack({"weights": torch.arange(3.0).as_subclass(OnGpu), "row": torch.arange(5.0)})
    found = unpack(packed.head, packed.memory(), gpu="meta")
    assert {name: (leaf.device.type, leaf.shape[0]) for name, leaf in found.items()} == {
        "weights": ("meta", 3), "row": ("cpu", 5)
    }  # fmt: skip


def test_a_resident_is_named_and_not_sent():
    mine, theirs, region = torch.zeros(1000), torch.ones(1000), Region()
    extent = region.put(pack((mine, torch.zeros(2)), {"weights": mine}))
    assert extent[1] == ALIGNMENT
    assert region.get(extent, {"weights": theirs})[0] is theirs
    region.close()


def test_a_region_is_seen_by_a_forked_process_and_grows_under_what_was_taken():
    region = Region()
    first = region.of(10)
    first.fill_(7)
    child = os.fork()
    if child == 0:
        region.of(100_000)[-1] = 5 if region.of(10).tolist() == [7] * 10 else 0
        region.of(10)[0] = 6
        os._exit(0)
    os.waitpid(child, 0)
    assert region.of(100_000)[-1] == 5
    region.close()
    assert first.tolist() == [6] + [7] * 9
