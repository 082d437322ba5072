"""Several workers for one cell: the bits of one process, whatever their number, order, deaths and restarts."""

import dataclasses
import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedspan.benchmark.component import Component
from fedspan.benchmark.errors import Diverged, Incompatible, UserError
from fedspan.benchmark.registry import plugins
from fedspan.benchmark.running.cell_run import run_cell
from fedspan.benchmark.running.job import reason_of
from fedspan.benchmark.spec.diagnostics import Diagnostics
from fedspan.benchmark.task import Partition
from fedspan.benchmark.training.process import settle
from fedspan.benchmark.training.scoring import score_stages
from fedspan.benchmark.training.workers import pool as pools
from fedspan.benchmark.training.workers.messages import ALIGNMENT, pack, unpack
from fedspan.benchmark.training.workers.processes import Processes
from fedspan.benchmark.training.workers.regions import Region
from fedspan.benchmark.training.workers.resident import Papers
from fedspan.benchmark.training.workers.schedule import Schedule
from fedspan.benchmark.training.workers.speedup import round_seconds, simulated
from fedspan.benchmark.training.workers.spread import dismiss, employ
from fedspan.benchmark.tree import clone, digest
from fedspan.methods.algorithms.fedavg import FedAvg
from tests.helpers import Blobs, NormNet, counted, how, numbers, start, toy, toy_cell, toy_stacks, trained, weights

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


@pytest.fixture(scope="module")
def crew():
    """Workers for all cells of this file: their start takes longer than the cells."""
    crew = Processes()
    yield crew
    crew.close()


@pytest.fixture(autouse=True)
def settled():
    settle(how())


@pytest.fixture
def spread(crew):
    """Return a function that starts a cell on so many workers, all of them ready."""
    runs = []

    def begin(cell, workers, **more):
        run = start(cell, **more)
        employ(run, workers, crew)
        runs.append(run)
        run.trainer.pool.wait()
        return run

    yield begin
    for run in runs:
        if run.trainer.pool is not None:
            run.trainer.pool.release()


def finished(run):
    while not run.finished:
        run.advance()
    return run


def agree(cell, run):
    """Hold a run to what one process makes of its cell: bits, scores, curve and what is counted."""
    alone = trained(cell)
    scores, reference = score_stages(run), score_stages(alone)
    assert weights(run) == weights(alone)
    assert (run.round_digests, run.stage_digests) == (alone.round_digests, alone.stage_digests)
    assert (scores, run.curve, run.measured) == (reference, alone.curve, alone.measured)
    assert counted(run) == counted(alone)


def possible(cell):
    try:
        start(cell)
    except Incompatible as reason:
        pytest.skip(str(reason))
    return cell


# the same bits ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "name"), list(enumerate(STACKS)), ids=STACKS)
def test_any_number_of_workers_gives_the_bits_of_loop(spread, number, name):
    cell = possible(toy_cell(*STACKS[name], model=NormNet(), protocol={"rounds": 2}, participation=0.7, **MANY))
    agree(cell, finished(spread(cell, (2, 3)[number % 2])))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3, 8])
@pytest.mark.parametrize("name", STACKS)
def test_every_number_of_workers_gives_the_bits_of_loop(spread, name, workers):
    cell = possible(toy_cell(*STACKS[name], model=NormNet(), **MANY))
    agree(cell, finished(spread(cell, workers)))


def test_eight_workers_for_nine_clients_give_the_bits_of_loop(spread):
    cell = toy_cell(*STACKS["stack"], model=NormNet(), **MANY)
    agree(cell, finished(spread(cell, 8)))


def test_diagnostics_are_those_of_one_process(spread):
    asked = Diagnostics(alignment=True, spectra=True, penalties=True, shares=True, clients=(1, 3))
    cell = toy_cell(*STACKS["client memory"], diagnostics=asked)
    agree(cell, finished(spread(cell, 3)))


def test_stacked_clients_stay_in_their_groups(spread):
    cell = toy_cell(model=NormNet(), clients=23, dataset=Blobs(train=230), partition=Even())
    alone = trained(cell, executor="vmap")
    assert weights(finished(spread(cell, 2, executor="vmap"))) == weights(alone)


def test_the_number_of_workers_may_change_between_rounds(spread, crew):
    cell = toy_cell(*STACKS["stack"], model=NormNet(), protocol={"rounds": 4})
    run = spread(cell, 3)
    for workers in (3, 2, 4, 2):
        employ(run, workers, crew)
        run.advance()
    agree(cell, run)


def test_a_cell_does_not_wait_for_its_workers():
    run = start(toy_cell())
    try:
        employ(run, 2)  # whose start takes longer than this cell
        assert not run.trainer.pool.ready
        agree(run.cell, finished(run))
    finally:
        dismiss(run)


# deaths -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_killed_workers_leave_no_trace(spread, crew, seed):
    cell = toy_cell(*STACKS["stack"], model=NormNet(), protocol={"rounds": 4}, **MANY)
    run, draws = spread(cell, 3), random.Random(seed)
    deadly = {draws.randrange(4): draws.randrange(9) for _ in range(2)}
    killed = []
    while not run.finished:
        ticks, fatal = [], deadly.get(run.state.round)

        def tick(ticks=ticks, fatal=fatal):
            if len(ticks) == fatal:
                victim = draws.choice(crew.workers).process.pid
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)
            ticks.append(1)

        run.advance(tick)
        assert len(ticks) == 9
    assert len(killed) == len(deadly)
    run.trainer.pool.wait()  # others have taken their places
    assert len(crew.workers) == 3
    assert not {worker.process.pid for worker in crew.workers} & set(killed)
    agree(cell, run)


@toy("addon", "toy_fatal")
class Fatal(Component):
    """Ends every worker that trains client 3."""

    driver: int = 0

    def client_end(self, delta, local):
        if local.n == 16 and os.getpid() != self.driver:
            os._exit(1)
        return delta, {}, dict(local.client)


def test_a_client_that_ends_every_worker_fails_the_cell_and_not_the_driver(spread):
    run = spread(toy_cell(FedAvg(), Fatal(os.getpid())), 2)
    assert run.trainer.data.size(3) == 16
    with pytest.raises(UserError, match="3 workers died at the same clients; is there enough memory"):
        run.advance()
    assert not run.trainer.pool.crew.workers


# errors -------------------------------------------------------------------------------------------


@toy("addon", "toy_broken")
class Broken(Component):
    """Raises at the second and the last client."""

    def penalty(self, step):
        if int(step.counts.sum()) in (4, 38):
            raise KeyError("velocity")
        return torch.zeros(())


@pytest.mark.parametrize(
    ("stack", "protocol", "kind"),
    [((FedAvg(), Broken()), {}, KeyError), ((FedAvg(),), {"lr": 1e30}, Diverged)],
    ids=["a hook's error", "divergence"],
)
def test_an_error_is_that_of_one_process(spread, stack, protocol, kind):
    cell, reasons = toy_cell(*stack, protocol=protocol), []
    for run in (start(cell), spread(cell, 3)):
        with pytest.raises(kind) as caught:
            finished(run)
        reasons.append(reason_of(caught.value))
    assert reasons[0] == reasons[1]


@toy("dataset", "toy_absent")
class Absent(Blobs):
    """Is only where the driver is."""

    driver: int = 0

    def load(self, cache: Path):
        if os.getpid() != self.driver:
            raise UserError("dataset 'toy_absent' is not here; run fedspan data fetch")
        return super().load(cache)


def test_a_worker_without_the_data_is_refused_by_name(crew):
    run = start(toy_cell(dataset=Absent(driver=os.getpid())))
    employ(run, 2, crew)
    with pytest.raises(UserError, match=f"a worker cannot prepare the cell on {os.uname().nodename}: dataset 'toy_abs"):
        run.trainer.pool.wait()
    dismiss(run)


def test_a_worker_with_other_versions_is_refused_by_name():
    mine = Papers.of(start(toy_cell()))
    assert mine.conflict(mine) == ""
    other = dataclasses.replace(mine, host="far", depends=dict(mine.depends) | {"version of torch": "1.0"})
    assert other.conflict(mine) == f"the version of torch is 1.0, and {torch.__version__.split('+')[0]} at the driver"


def test_what_a_worker_has_must_be_what_the_driver_has(spread, monkeypatch):
    monkeypatch.setattr("fedspan.benchmark.training.workers.resident.engine_digest", lambda: "of another engine")
    with pytest.raises(UserError, match=r"a worker on .* would give other bits: the source of the engine is syntax:"):
        spread(toy_cell(), 2)


# records ------------------------------------------------------------------------------------------


def test_a_record_says_how_many_workers_there_were_and_is_else_that_of_one(tmp_path):
    cell = toy_cell(*STACKS["frozen head, calibrated"])
    spread = run_cell(cell, how(tmp_path / "spread"), share=lambda run: 2)
    alone = run_cell(cell, how(tmp_path / "alone"))
    assert numbers(spread) == numbers(alone)
    assert spread["provenance"]["workers"] == 2
    assert "workers" not in alone["provenance"]
    assert spread["compute"]["worker_seconds"] > 0


# schedule -----------------------------------------------------------------------------------------

costs_lists = st.lists(st.integers(0, 100), min_size=1, max_size=30)


@given(costs=costs_lists, window=st.integers(1, 40), seed=st.integers(0, 10**6))
def test_every_job_goes_out_once_none_far_before_its_turn_the_longest_first(costs, window, seed):
    schedule, turn, out, done, draws = Schedule(costs, window), 0, [], set(), random.Random(seed)
    while turn < len(costs):
        number = schedule.take(turn) if draws.random() < 0.7 else None
        if number is None:
            going = [number for number in out if number not in done]
            if not going:
                number = schedule.take_turn(turn) if draws.random() < 0.5 else schedule.take(turn)
                assert number is not None, "it would wait for ever"
            else:
                ended = draws.choice(going)
                if draws.random() < 0.2:
                    schedule.put_back(ended)
                    out.remove(ended)
                else:
                    done.add(ended)
        if number is not None:
            assert number < turn + window
            assert number not in out
            out.append(number)
        while turn in done:
            turn += 1
    assert sorted(out) == list(range(len(costs)))
    assert schedule.left == 0


@given(costs=costs_lists, window=st.integers(1, 40))
def test_of_those_that_may_go_the_longest_goes(costs, window):
    schedule = Schedule(costs, window)
    found = [schedule.take(0) for _ in costs]
    allowed = range(min(window, len(costs)))
    assert [n for n in found if n is not None] == sorted(allowed, key=lambda number: (-costs[number], number))


@given(costs=st.lists(st.integers(1, 1000), min_size=1, max_size=200), workers=st.integers(1, 64))
def test_a_simulated_round_takes_what_the_formula_says_and_less_than_one_client_more(costs, workers):
    least, most = round_seconds(costs, workers), sum(costs) / workers + (1 - 1 / workers) * max(costs)  # Graham 1966
    assert least - 1e-6 <= simulated(costs, workers) <= max(least, most) + 1e-6


def test_what_one_process_does_alone_limits_64_workers():
    even = [1.0] * 640
    assert simulated(even, 64) == round_seconds(even, 64) == 10
    assert simulated(even, 64, tell=2.0) == round_seconds(even, 64, tell=2.0) == 12
    assert simulated(even, 64, add=0.1) == pytest.approx(round_seconds(even, 64, add=0.1), rel=0.02)
    assert simulated([*even, 50.0], 64) == round_seconds([*even, 50.0], 64) == 50


def test_few_results_wait_however_small_the_first_client_is(spread, monkeypatch):
    monkeypatch.setattr(pools, "HELD_BYTES", 0)
    cell = toy_cell(clients=60, dataset=Blobs(train=120), partition=Even(), protocol={"rounds": 1})
    run, waiting = spread(cell, 2), []
    arrive = pools.Pool._take

    def noting(pool, worker, kind, said, schedule, arrived, deaths):
        arrive(pool, worker, kind, said, schedule, arrived, deaths)
        waiting.append(len(arrived))

    monkeypatch.setattr(pools.Pool, "_take", noting)
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


@given(
    trees=st.dictionaries(st.text(max_size=3), st.dictionaries(st.text(max_size=2), tensors, max_size=4), max_size=4)
)
def test_a_message_arrives_as_it_was_sent_in_layout_too(trees):
    message = {"numbers": [1, 2.5, None], "trees": trees}
    packed = pack(message)
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


def test_a_resident_is_named_and_not_sent():
    mine, theirs = torch.zeros(1000), torch.ones(1000)
    packed = pack((mine, torch.zeros(2)), {"weights": mine})
    assert packed.size == ALIGNMENT
    assert unpack(packed.head, packed.memory(), {"weights": theirs})[0] is theirs


def test_a_region_is_seen_by_both_and_grows_under_what_was_taken():
    mine = Region()
    theirs = Region(os.dup(mine.handle))
    first = mine.of(10)
    first.fill_(7)
    assert theirs.of(10).tolist() == [7] * 10
    mine.of(100_000)[-1] = 5
    assert theirs.of(100_000)[-1] == 5
    assert theirs.of(100_000)[:10].tolist() == first.tolist() == [7] * 10
    for region in (mine, theirs):
        region.close()
    assert digest({"": first}) == digest({"": torch.full((10,), 7, dtype=torch.uint8)})
