"""Clients that stop early, are lost or late: what the server learns of them, and what is counted."""

import copy
import math
import random
import re
from typing import ClassVar

import numpy as np
import pytest
import torch

from fedspan.benchmark.component import Component
from fedspan.benchmark.errors import CorruptFile, Diverged, HookError, Incompatible, UserError
from fedspan.benchmark.fleet import WHOLE, Fleet, Turn
from fedspan.benchmark.records import results as folder
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.validation import validate
from fedspan.benchmark.running.cell_run import run_cell
from fedspan.benchmark.spec.diagnostics import Diagnostics
from fedspan.benchmark.training import stages
from fedspan.benchmark.training.scoring import score_stages
from fedspan.benchmark.training.traffic import classifier_cost
from fedspan.benchmark.tree import finite
from fedspan.methods.addons.feddecorr import FedDecorr
from fedspan.methods.addons.ffc import FFC
from fedspan.methods.algorithms.centralized import Centralized
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.methods.algorithms.lg_fedavg import LGFedAvg
from fedspan.methods.algorithms.scaffold import Scaffold
from fedspan.tasks.fleets.dropout import Dropout
from fedspan.tasks.fleets.reliable import Reliable
from fedspan.tasks.fleets.speeds import Speeds
from fedspan.tasks.fleets.stragglers import Stragglers
from tests.helpers import how, start, toy_cell, trained, weights
from tests.toys import CLIENTS, toy


@toy("fleet", "toy_away")
class Away(Fleet):
    """Everybody is lost in the first rounds, and client 1 always."""

    rounds: int = 1

    def turns(self, work, draws):
        return [Turn(arrives=draws.round >= self.rounds and one.client != 1) for one in work]


@toy("fleet", "toy_short")
class Short(Fleet):
    """Client k takes k steps, where it has so many."""

    def turns(self, work, draws):
        return [Turn(steps=one.client) if 0 < one.client < one.steps else WHOLE for one in work]


@toy("fleet", "toy_asked")
class Asked(Fleet):
    """Everybody does everything; notes what it was asked."""

    asked: ClassVar[list] = []

    def turns(self, work, draws):
        self.asked.append(work)
        return [WHOLE] * len(work)


@toy("algorithm", "toy_broken")
class Broken(Component):
    """Client 1, who alone has four images, minimises what is no number."""

    def penalty(self, step):
        return 0 * step.logits.sum() + torch.where(step.counts.sum() == 4, torch.nan, 0.0)


WRONG = {
    "nothing": (lambda work: None, "it returned None; is a return missing?"),
    "too few": (lambda work: [WHOLE], "it returned a list of 1"),
    "by client": (lambda work: {one.client: WHOLE for one in work}, "it returned a dict of 6"),
    "no turns": (lambda work: [None] * len(work), "client 0 gets None, not a Turn"),
    "too many steps": (lambda work: [Turn(steps=10**6)] * len(work), "client 0 cannot take 1000000 of its 2 steps"),
    "no step": (lambda work: [Turn(steps=0)] * len(work), "client 0 cannot take 0 of its 2 steps"),
    "part of a step": (lambda work: [Turn(steps=1.5)] * len(work), "client 0 cannot take 1.5 of its 2 steps"),
    "steps as a text": (lambda work: [Turn(steps="1")] * len(work), "client 0 cannot take '1' of its 2 steps"),
    "no seconds": (lambda work: [Turn(seconds=math.nan)] * len(work), "client 0 cannot take nan seconds"),
    "before it began": (lambda work: [Turn(seconds=-1.0)] * len(work), "client 0 cannot take -1.0 seconds"),
    "seconds as a text": (lambda work: [Turn(seconds="1")] * len(work), "client 0 cannot take '1' seconds"),
    "a clock for some": (
        lambda work: [Turn(seconds=1.0), *[WHOLE] * (len(work) - 1)],
        "client 1 has no seconds, but others do",
    ),
    "half arrives": (lambda work: [Turn(arrives=0.5)] * len(work), "client 0 arrives: 0.5, neither True nor False"),
}


@toy("fleet", "toy_wrong")
class Wrong(Fleet):
    """Returns what it must not."""

    case: str = "nothing"

    def turns(self, work, draws):
        return WRONG[self.case][0](work)


@toy("fleet", "toy_careless")
class Careless(Fleet):
    """Draws from a generator that no key of the run repeats."""

    draw: str = "python"

    def turns(self, work, draws):
        {"python": random.random, "numpy": np.random.random, "torch": lambda: torch.rand(())}[self.draw]()
        return [Turn() for _ in work]


@toy("fleet", "toy_unwaited")
class Unwaited(Fleet):
    """The server waits two seconds for all clients but the first, whose update is lost."""

    def turns(self, work, draws):
        return [Turn(arrives=False), *[Turn(seconds=2.0)] * (len(work) - 1)]


@toy("fleet", "toy_numpy")
class OfNumpy(Fleet):
    """Returns NumPy's numbers, as draws are."""

    def turns(self, work, draws):
        return [Turn(np.int64(1), np.bool_(one.client > 0), np.float32(2.5)) for one in work]


@toy("fleet", "toy_counted")
class Counted(Fleet):
    """Everybody takes all steps, and says how many."""

    def turns(self, work, draws):
        return [Turn(steps=one.steps) for one in work]


@toy("fleet", "toy_endless")
class Endless(Fleet):
    """Takes longer than anybody lives, or than a computer counts."""

    seconds: float = 1e31

    def turns(self, work, draws):
        return [Turn(seconds=math.exp(self.seconds) if self.seconds < 1e4 else self.seconds)] * len(work)


@pytest.mark.parametrize(("seconds", "said"), [
    (1e31, r"lets client 0 take 1e\+31 seconds in a round, more than 1e\+12, the limit; change its settings"),
    (1e3, r"its settings are out of range \(math range error\)"),
])  # fmt: skip
def test_times_that_no_record_holds_are_refused_before_training(seconds, said):
    with pytest.raises(UserError, match=rf"^fleet=toy_endless\S* ?{said}"):
        start(toy_cell(fleet=Endless(seconds=seconds)))


@toy("algorithm", "toy_counting")
class Counting(Component):
    """Sums the steps that clients say they took."""

    def client_end(self, delta, local):
        return delta, {"steps": float(local.steps)}, {}


@toy("algorithm", "toy_noting")
class Noting(Component):
    """Changes nothing, computes on the client's images at the end, and notes what it sees of steps and clients."""

    steps: ClassVar[list] = []
    counts: ClassVar[list] = []

    def penalty(self, step):
        self.steps.append((int(step.number), int(step.steps)))
        return 0 * step.features.sum()

    def weights(self, counts, samples):
        self.counts.append(counts)
        return counts.sum(1)

    def client_end(self, delta, local):
        return delta, {"mean": local.apply(local.params)[1].mean()}, {}


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """Return the record of a cell whose first of three rounds is empty."""
    return run_cell(toy_cell(fleet=Away()), how(tmp_path_factory.mktemp("away")))


def test_a_method_sees_the_steps_that_each_client_takes():
    run = start(toy_cell(Counting(), fleet=Short()))
    turns = run.fleet.turns(run.state, run.participants())
    assert {client: turn.steps for client, turn in turns.items()} == {0: None, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5}
    for client, turn in turns.items():
        whole = 2 * len(run.trainer.data.batch_sizes(run.trainer.data.size(client)))
        sums, _ = run.executor.run(run.state, [client], turns=turns)
        assert sums.steps == float(sums.uploads("toy_counting")["steps"]) == (turn.steps or whole)


def test_each_step_knows_how_many_the_client_takes():
    run = start(toy_cell(Noting()))
    for steps, taken in ((3, 3), (None, 10)):
        Noting.steps.clear()
        run.trainer.train(run.state, 5, steps)
        assert Noting.steps == [(number, taken) for number in range(taken)]


def test_weights_are_asked_for_the_clients_that_arrive():
    run = start(toy_cell(Noting(), fleet=Away(rounds=1)))
    Noting.counts.clear()
    run.advance()
    assert Noting.counts == [], "nobody arrived"
    run.advance()
    [counts] = Noting.counts
    arrived = [run.trainer.data.counts(client).double() for client in range(CLIENTS) if client != 1]
    assert torch.equal(counts, torch.stack(arrived))


def test_what_hooks_compute_to_know_their_bytes_beforehand_costs_nothing():
    timed, plain = trained(toy_cell(Noting(), fleet=Speeds())), trained(toy_cell(Noting()))
    assert plain.meter.flops["hooks"] > 0
    assert timed.meter.flops == plain.meter.flops


def test_a_client_that_stops_early_is_where_it_was_after_as_many_steps_of_its_whole_work():
    """The first steps are the same: one epoch is the first of two."""
    run, single = start(toy_cell()), start(toy_cell(protocol={"local_epochs": 1}))
    steps = len(run.trainer.data.batch_sizes(run.trainer.data.size(5)))
    early, one = run.trainer.train(run.state, 5, steps), single.trainer.train(single.state, 5)
    assert (early.steps, early.images) == (one.steps, one.images)
    assert all(torch.equal(early.delta[path], leaf) for path, leaf in one.delta.items())


def test_what_does_not_arrive_leaves_no_trace_but_its_cost():
    lost = start(toy_cell(Scaffold(), fleet=Away(rounds=0)))
    others = start(toy_cell(Scaffold()))
    lost.advance()
    sums, _ = others.executor.run(others.state, [client for client in range(CLIENTS) if client != 1])
    others.aggregate(sums)
    assert weights(lost) == weights(others)
    assert 1 not in lost.state.rows
    whole = start(toy_cell(Scaffold()))
    whole.advance()
    for name in ("visits", "steps", "images", "bytes_down"):
        assert getattr(lost.meter, name) == getattr(whole.meter, name)
    assert lost.meter.flops["train"] == whole.meter.flops["train"]
    assert lost.meter.bytes_up * CLIENTS == whole.meter.bytes_up * (CLIENTS - 1)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize("fleet", [Away(rounds=0), Stragglers(share=0.0)], ids=["lost", "arrives"])
def test_only_a_client_that_arrives_may_end_the_cell_by_diverging(fleet, executor):
    run = start(toy_cell(Broken(), fleet=fleet), executor=executor)
    if isinstance(fleet, Stragglers):
        with pytest.raises(Diverged, match="round 1, client 1"):
            run.advance()
        return
    whole = start(toy_cell(fleet=fleet), executor=executor)
    for one in (run, whole):
        one.advance()
    assert (run.meter.steps, run.meter.images) == (whole.meter.steps, whole.meter.images)
    assert finite(run.state.params)
    assert 1 not in run.state.rows


def test_scaffolds_variate_stays_the_mean_of_its_clients():
    run = trained(toy_cell(Scaffold(), fleet=Dropout(rate=0.5), protocol={"precision": "float64"}))
    assert run.meter.lost
    for path, c in run.state.server["scaffold"].items():
        rows = [row.states["scaffold"][path] for row in run.state.rows.values()]
        assert torch.allclose(c, sum(rows) / CLIENTS, rtol=1e-9, atol=1e-12)


def test_the_classifier_travels_up_only_where_it_arrives():
    away, plain = trained(toy_cell(fleet=Away(rounds=0))), trained(toy_cell())
    cost = [classifier_cost(run.trainer, run.state)["bytes_of_one_client"] for run in (away, plain)]
    assert cost[0] / cost[1] == pytest.approx((36 - 3) / 36), "18 visits down and up, 3 of them lost"


def test_an_empty_round_is_recorded_and_the_model_stays(record):
    run = start(toy_cell(fleet=Away()))
    before = weights(run)
    run.advance()
    assert weights(run) == before
    assert record["status"] == "done"
    assert record["fleet"] == {"visits": 18, "lost": 8, "cut": 0, "empty_rounds": 1}
    assert [loss is None for loss in record["curve"]["train_loss"]] == [True, False, False]
    assert record["curve"]["round"] == [1, 2, 3]


def test_a_fleet_that_never_leaves_anybody_is_one_clear_line():
    with pytest.raises(
        UserError, match=r"^fleet=toy_away\(rounds=3\) loses every client in each of protocol\.rounds=3"
    ):
        start(toy_cell(fleet=Away(rounds=3)))
    with pytest.raises(UserError, match=r"^fleet=speeds\(deadline=1e-09\) loses every client"):
        start(toy_cell(fleet=Speeds(deadline=1e-9)))


@pytest.mark.parametrize("draw", ["python", "numpy", "torch"])
def test_turns_depend_on_no_global_random_number(draw):
    with pytest.raises(
        HookError, match=r"^fleet 'toy_careless', turns \(.*\) draws from a global random generator; draw from `draws`"
    ):
        start(toy_cell(fleet=Careless(draw=draw)))


@pytest.mark.parametrize("case", WRONG)
def test_turns_that_cannot_be_are_refused_by_name(case):
    line = Wrong.turns.__code__.co_firstlineno
    place = (
        rf"fleet 'toy_wrong', turns \({re.escape(__file__)}, line {line}\) must return the turn of each of 6 clients"
    )
    with pytest.raises(HookError, match=rf"^{place}: {re.escape(WRONG[case][1])}$"):
        start(toy_cell(fleet=Wrong(case=case)))


def test_numpys_numbers_are_as_good_as_pythons(tmp_path):
    record = run_cell(toy_cell(fleet=OfNumpy()), how(tmp_path))
    validate(record)
    assert record["fleet"] == {"visits": 18, "lost": 3, "cut": 18, "empty_rounds": 0} | {
        "seconds": 7.5,
        "seconds_at_round": [2.5, 5.0, 7.5],
    }


@pytest.mark.parametrize(("every", "calls", "left"), [(0, 6, 5), (1, 18, 10)])
def test_a_client_whose_updates_are_all_lost_does_not_calibrate(every, calls, left):
    """Client 1 never arrives. In the first round nobody does, and no calibration changes the model after it."""
    reliable, away = (trained(toy_cell(FedAvg(), FFC(every=every), fleet=one)) for one in (Reliable(), Away()))
    for run in (reliable, away):
        score_stages(run)
    assert reliable.meter.calibration_up * left == away.meter.calibration_up * calls > 0
    assert reliable.meter.calibration_down * left == away.meter.calibration_down * calls > 0
    heads = [
        stages.calibrate(away.trainer, away.state, away.cell.seed, without)["head.weight"] for without in ((), {1})
    ]
    assert torch.equal(away.calibrated()["head.weight"], heads[1])
    assert not torch.equal(*heads)


def test_a_trained_model_without_the_servers_trees_has_the_same_late_clients():
    """SCAFFOLD's download is twice the model, which a final calibration must still know."""
    run = trained(toy_cell(Scaffold(), FFC(), fleet=Speeds(step_seconds=0, deadline=0.006)))
    late = run.fleet.never_heard(run.state, run._participants)
    run.state = run.state.models_only()
    assert run.fleet.never_heard(run.state, run._participants) == late
    assert 0 < len(late) < CLIENTS


def test_the_server_need_not_wait_for_a_lost_update(tmp_path):
    record = run_cell(toy_cell(fleet=Unwaited()), how(tmp_path))
    assert (record["fleet"]["lost"], record["fleet"]["seconds"]) == (3, 6.0)


def test_a_client_that_takes_all_its_steps_is_not_cut(tmp_path):
    record = run_cell(toy_cell(fleet=Counted()), how(tmp_path))
    assert record["fleet"] == {"visits": 18, "lost": 0, "cut": 0, "empty_rounds": 0}
    assert weights(trained(toy_cell(fleet=Counted()))) == weights(trained(toy_cell()))


def test_training_in_one_place_has_no_fleet():
    with pytest.raises(Incompatible, match="'centralized' trains on all images in one place, where fleet=dropout"):
        start(toy_cell(Centralized(), fleet=Dropout()))


def test_a_rounds_simulated_time_is_that_of_its_slowest_client():
    run = start(toy_cell(fleet=Speeds(), participation=0.5))
    waited = []
    while not run.finished:
        waited.append(max(turn.seconds for turn in run.fleet.turns(run.state, run.participants()).values()))
        run.advance()
    assert run.simulated_at_round == pytest.approx([sum(waited[:number]) for number in (1, 2, 3)])


def test_a_fleet_knows_the_work_and_the_bytes_that_then_travel():
    run = start(toy_cell(Scaffold(), fleet=Asked()))
    run.advance()
    works = Asked.asked[-1]
    assert [work.client for work in works] == run.participants()
    assert sum(work.up for work in works) == run.meter.bytes_up
    assert sum(work.down for work in works) == run.meter.bytes_down
    assert sum(work.steps for work in works) == run.meter.steps


def test_a_fleet_knows_the_bytes_of_a_warm_up_and_of_the_rounds_after_it():
    run = start(toy_cell(LGFedAvg(warm_up=0.5), fleet=Asked(), protocol={"rounds": 4}))
    told, sent = [], [0]
    while not run.finished:
        run.advance()
        told.append(sum(work.up for work in Asked.asked[-1]))
        sent.append(run.meter.bytes_up)
    assert told == np.diff(sent).tolist()
    assert len(set(told)) == 2


def test_watched_penalties_are_those_of_the_steps_that_are_taken():
    cell = toy_cell(
        FedAvg(), FedDecorr(), fleet=Stragglers(share=1.0, unit="steps"), diagnostics=Diagnostics(penalties=True)
    )
    run, plain = trained(cell), trained(toy_cell(FedAvg(), FedDecorr(), fleet=cell.fleet))
    assert weights(run) == weights(plain)
    penalties = run.measured["penalties"]["feddecorr"]
    assert {len(means) for means in penalties.values()} == {1, 2}, "some end within their first epoch"
    assert all(mean > 0.01 for means in penalties.values() for mean in means[1:])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lost": 19}, "more lost or cut visits than its 18"),
        ({"empty_rounds": 4}, "more empty rounds than 3"),
        ({"seconds": 1.0}, "only one of fleet.seconds and"),
        ({"seconds": 1.0, "seconds_at_round": [1.0, 2.0, 3.0]}, "ends with 3.0, more than the 1.0"),
        ({"seconds": 3.0, "seconds_at_round": [1.0, 3.0]}, "does not rise with one value"),
        ({"lost": -1}, "fleet.lost"),
    ],
)
def test_a_record_of_visits_that_cannot_be_is_refused(record, change, said):
    validate(copy.deepcopy(record))
    with pytest.raises(CorruptFile, match=said):
        validate(copy.deepcopy(record) | {"fleet": record["fleet"] | change})


def test_visits_of_a_fleet_that_the_cell_does_not_have_are_refused(tmp_path, record):
    plain = run_cell(toy_cell(), how(tmp_path))
    assert "fleet" not in plain
    with pytest.raises(CorruptFile, match="its spec names none"):
        validate(copy.deepcopy(plain) | {"fleet": record["fleet"]})


def test_the_times_of_thousands_of_rounds_go_to_a_sidecar(tmp_path, record, monkeypatch):
    monkeypatch.setattr(folder, "LIMIT_BYTES", 1)
    results = Results(tmp_path)
    results.write(copy.deepcopy(record))
    assert (results.records / f"{record['key']}.fleet.json").exists()
    assert results.read(record["key"]) == record


@toy("algorithm", "toy_overflowing")
class Overflowing(Component):
    """Client 1, who alone has four images, ends at weights that are no numbers; its losses are."""

    def shift(self, step):
        over = step.number == step.steps - 1 and step.counts.sum() == 4
        return {path: torch.full_like(leaf, math.inf if over else 0.0) for path, leaf in step.params.items()}


def test_weights_that_overflow_in_the_last_step_of_a_lost_client_end_nothing():
    lost = start(toy_cell(Overflowing(), fleet=Away(rounds=0)))
    lost.advance()
    assert finite(lost.state.params)
    with pytest.raises(Diverged, match="round 1, client 1: the trained weights are not finite"):
        start(toy_cell(Overflowing(), fleet=Stragglers(share=0.0))).advance()


@pytest.mark.parametrize("wanted", [{"penalties": True}, {"alignment": True}])
def test_diagnostics_end_nothing_that_a_lost_client_does_not(tmp_path, wanted):
    diagnostics = Diagnostics(**wanted, round=1)
    cell = toy_cell(Overflowing(), FedDecorr(), fleet=Away(rounds=0), diagnostics=diagnostics)
    assert run_cell(cell, how(tmp_path))["status"] == "done"
