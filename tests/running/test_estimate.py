import io
import itertools
import math
from types import SimpleNamespace

import pytest
from rich.console import Console

from fedspan.benchmark.errors import Diverged, UserError
from fedspan.benchmark.fleet import Fleet, Turn
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.running import estimate
from fedspan.benchmark.running.cell_run import Outcome, make_record
from fedspan.benchmark.running.estimate import (
    Speed,
    cost,
    cost_key,
    extrapolated_seconds,
    measure_speed,
    step_flops,
    workload_key,
)
from fedspan.benchmark.spec.plan import plan
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.training import meter
from fedspan.benchmark.training.run import Run
from fedspan.tasks.fleets.stragglers import Stragglers
from tests import helpers, toys

SMALL = {"dataset.limit": 60, "clients": 3, "model.width": 2, "model.features": 4, "partition.min_size": 5}


def cells(*overrides):
    return plan([SMALL | more for more in overrides])


@pytest.fixture
def asked(monkeypatch):
    """Return for how long each kind of cells is to be tried here; each says 100 seconds."""
    calls = []
    monkeypatch.setattr(estimate, "expected_seconds", lambda planned, speeds, seconds: calls.append(seconds) or 100.0)
    return calls


@pytest.fixture
def short(monkeypatch):
    """Time one round."""
    monkeypatch.setattr(estimate, "SECONDS", 0.0)
    monkeypatch.setattr(estimate, "LEAST", 0.0)


def keep(results, planned, seconds, **made):
    record = make_record(
        planned.cell, How(results.root, results.root), Outcome(scores={"trained": {"accuracy": 1.0}}), None
    )
    record["provenance"] |= made
    results.write(helpers.whole(record | {"compute": {"seconds": {"total": seconds}}}))


def expected(missing, results, unknown=()):
    return estimate.estimate(missing, results, Console(file=io.StringIO()), unknown)


def test_cells_that_differ_in_seed_or_partition_cost_the_same():
    names = {cost_key(planned.cell.what) for planned in cells({}, {"seed": 1}, {"partition.alpha": 9.0})}
    assert len(names) == 1


def test_cells_that_differ_in_rates_and_coefficients_cost_the_same():
    method = {"algorithm": "fedprox", "addons": ["ccvr"]}
    tried = ({"protocol.lr": 0.5}, {"algorithm.mu": 1.0}, {"addon.ccvr.lr": 0.5})
    assert len({cost_key(planned.cell.what) for planned in cells(method, *(method | more for more in tried))}) == 1
    more = {cost_key(planned.cell.what) for planned in cells(method, method | {"addon.ccvr.epochs": 2})}
    assert len(more) == 2


TRIAL = {"protocol.validation": 0.5}


@pytest.mark.parametrize(
    "more", [{"clients": 4}, {"protocol.rounds": 3}, {"algorithm": "fedprox"}, {"model.width": 3}, TRIAL]
)
def test_cells_that_differ_in_anything_else_do_not(more):
    here, there = cells({}, more)
    assert cost_key(here.cell.what) != cost_key(there.cell.what)


def test_records_of_like_cells_give_their_mean(tmp_path, asked):
    results = Results(tmp_path)
    done = cells({"seed": 0}, {"seed": 1})
    for planned, seconds in zip(done, (10.0, 20.0), strict=True):
        keep(results, planned, seconds)
    cost = expected(cells({"seed": 2}, {"seed": 3}), results)
    assert (cost.seconds, cost.basis, asked) == (30.0, "records for 1 kind of cells", [])


def test_cells_that_go_on_from_one_training_count_as_one(tmp_path, asked):
    ridges = [{"addons": ["ffc"], "addon.ffc.ridge": ridge} for ridge in (0.0, 0.1, 1.0)]
    found = expected(cells(*ridges, *({**ridges[0], "seed": seed} for seed in (1, 2))), Results(tmp_path))
    assert found.seconds == 300.0
    assert found.basis == "timing runs of 1 kind of cells; 2 cells reuse the training of another"


def test_records_of_like_cells_need_no_images_and_nothing_is_timed_without_any(tmp_path, asked):
    """No setting names the images of these cells."""
    first, again, other = (helpers.NOWHERE | more for more in ({"seed": 0}, {"seed": 1}, {"algorithm": "fedprox"}))
    results = Results(tmp_path)
    with pytest.raises(UserError, match=r"dataset\.source is not set"):
        expected(cells(first, other), results)
    assert asked == []
    keep(results, *cells(first), 10.0)
    assert expected(cells(again), results).seconds == 10.0


@pytest.mark.parametrize("made", [{"processor": "Another (AVX512)"}, {"device": "cuda:0", "gpu": "A card"}])
def test_what_another_kind_of_machine_took_says_nothing(tmp_path, asked, made):
    results = Results(tmp_path)
    keep(results, *cells({"seed": 0}), 10.0, **made)
    assert expected(cells({"seed": 1}), results).seconds == 100.0
    keep(results, *cells({"seed": 2}), 20.0)
    assert expected(cells({"seed": 1}), results).seconds == 20.0
    assert len(asked) == 1


def test_cells_that_trials_will_choose_are_trained_beside_those_they_stand_for(tmp_path, asked):
    default = cells({"seed": 0}, {"seed": 1})
    assert expected(default, Results(tmp_path), unknown=default).seconds == 400.0
    assert expected([], Results(tmp_path), unknown=default).seconds == 200.0


def test_every_other_kind_is_timed_once(tmp_path, asked):
    results = Results(tmp_path)
    keep(results, *cells({"clients": 4}), 10.0)
    cost = expected(cells({"seed": 0}, {"seed": 1}, {"algorithm": "fedprox"}, {"clients": 4, "seed": 1}), results)
    assert asked == [5.0, 5.0]
    assert cost.seconds == 310.0
    assert cost.basis == "records for 1 kind of cells and timing runs of 2 kinds of cells"


def test_many_kinds_are_each_tried_long_enough(tmp_path, asked):
    expected(cells(*({"clients": 4 + i} for i in range(40))), Results(tmp_path))
    assert asked == [0.5] * 40


SPEED = Speed(prepare=5.0, trained=0.05, tested=0.01, flops=1000)
PROTOCOL = {"protocol.rounds": 10, "protocol.local_epochs": 2, "protocol.eval_every": 5}


def whole(flops=1000, **overrides):
    """Return a cell's cost at `SPEED`, on 500 training and 359 test images."""
    [planned] = cells(PROTOCOL | {"dataset.limit": 500, "clients": 5, "participation": 0.4} | overrides)
    cell = planned.cell
    return cost(cell, cell.dataset.prepare(How.of(planned.config).data), SPEED, flops)


def test_a_cell_trains_on_the_images_of_its_participants_and_tests_on_the_rounds_asked_for():
    training, evaluation = 10 * 2 * 500 * 0.4 * 0.05, (2 + 1) * 359 * 0.01
    assert whole() == pytest.approx(5 + training + evaluation)
    assert whole(flops=1500) == pytest.approx(5 + 1.5 * training + evaluation)
    assert whole(**{"protocol.rounds": 11}) == pytest.approx(5 + 1.1 * training + 4 * 359 * 0.01), "the last one too"


def test_a_trial_trains_on_what_it_does_not_hold_out_and_is_tested_on_what_it_does():
    assert whole(**{"protocol.validation": 0.2}) == pytest.approx(5 + 10 * 2 * 400 * 0.4 * 0.05 + 3 * 100 * 0.01)


def test_a_method_with_phases_takes_the_epochs_of_all_of_them():
    """FedRep trains its head for ten epochs, then the body for those of the protocol."""
    [head] = cells({"algorithm": "fedrep"})
    epochs = [epochs for epochs, _ in head.cell.method().phases(2)]
    assert len(epochs) == 2
    training, evaluation = 10 * sum(epochs) * 500 * 0.4 * 0.05, (2 + 1) * 359 * 0.01
    assert whole(algorithm="fedrep") == pytest.approx(5 + training + evaluation)


def test_images_that_a_partition_leaves_out_cost_nothing():
    class Half(toys.Ragged):
        def split(self, labels, classes, clients, rng):
            return [part[::2] for part in super().split(labels, classes, clients, rng)]

    def trained(partition):
        cell = helpers.toy_cell(partition=partition, protocol={"rounds": 1, "local_epochs": 1, "eval_every": 1})
        data = cell.dataset.prepare(helpers.how().data)
        return cost(cell, data, Speed(prepare=0.0, trained=1.0, tested=0.0, flops=1000), 1000)

    assert 0.4 * trained(toys.Ragged()) < trained(Half()) < 0.6 * trained(toys.Ragged())


def test_all_clients_as_one_train_on_all_images():
    assert whole(algorithm="centralized") == pytest.approx(whole(participation=1.0))


@pytest.fixture
def rounds(monkeypatch):
    """Return a function that says what phases each round takes, and for which share of it there is a processor."""

    def make(taken, share=1.0):
        elapsed, taken = [0.0], iter(taken)

        def advance(run):
            for phase, seconds in next(taken).items():
                run.meter.seconds[phase] = run.meter.seconds.get(phase, 0.0) + seconds
                elapsed[0] += seconds

        clock = SimpleNamespace(perf_counter=lambda: elapsed[0], process_time=lambda: share * elapsed[0])
        monkeypatch.setattr(estimate.Run, "advance", advance)
        for module in (estimate, meter):
            monkeypatch.setattr(module, "time", clock)
        return taken

    return make


@pytest.mark.parametrize("share", [1.0, 0.25, 2.0])
def test_rounds_that_were_tried_stand_for_all_in_seconds_of_a_processor(rounds, share):
    """A share above 1 is that of several threads, which the cell will have too."""
    warming_up = {"prepare": 5.0, "local": 102.0, "server": 100.5, "evaluate": 100.1}
    rounds(itertools.chain([warming_up], itertools.repeat({"local": 2.0, "server": 0.5, "evaluate": 0.1})), share)
    [planned] = cells(PROTOCOL)
    expected = min(share, 1.0) * (10 * 2.5 + (2 + 1) * 0.1)
    assert extrapolated_seconds(planned.cell, How.of(planned.config), 0.0) == pytest.approx(expected)


def test_a_round_in_which_the_machine_stalls_says_nothing_of_the_others(rounds):
    left = rounds({"local": seconds, "evaluate": 0.0} for seconds in (9.0, 2.0, 90.0, 2.0))  # the first warms up
    [planned] = cells(PROTOCOL)
    assert extrapolated_seconds(planned.cell, How.of(planned.config), 93) == pytest.approx(10 * 2.0)
    assert not list(left)


@toys.toy("fleet", "toy_asked")
class Asked(Fleet):
    """Fleet that nobody may ask more often than a whole run does."""

    arrives: bool = True

    def turns(self, work, draws):
        assert draws.round < helpers.QUICK.rounds
        return [Turn(arrives=self.arrives)] * len(work)


def test_a_cell_is_tried_for_its_own_rounds_at_most():
    assert extrapolated_seconds(helpers.toy_cell(fleet=Asked()), helpers.how(), math.inf) > 0
    with pytest.raises(UserError, match=f"loses every client in each of protocol.rounds={helpers.QUICK.rounds}"):
        extrapolated_seconds(helpers.toy_cell(fleet=Asked(arrives=False)), helpers.how(), math.inf)


@pytest.mark.parametrize(
    "method",
    [
        {}, {"algorithm": "moon"}, {"algorithm": "fedsam"}, {"addons": ["feddecorr"]}, {"addons": ["spherefed"]},
        {"protocol.precision": "bf16"}, {"protocol.precision": "bf16", "algorithm": "fedsam"},
    ],
)  # fmt: skip
def test_flops_are_counted_without_computing(method, tmp_path):
    [planned] = cells(
        {"clients": 1, "model.features": 12, "protocol.batch_size": 30, "protocol.local_epochs": 1} | method
    )
    cell = planned.cell
    run = Run(cell, How(tmp_path, tmp_path))
    run.advance()
    assert step_flops(cell, cell.dataset.prepare(tmp_path)) == run.meter.flops["train"] / run.meter.steps


def test_methods_share_a_workload_and_other_images_or_batches_do_not():
    here, method, batch, images = cells(
        {}, {"algorithm": "moon", "addons": ["feddecorr"], "protocol.lr": 1.0, "clients": 4},
        {"protocol.batch_size": 7}, {"dataset.limit": 61},
    )  # fmt: skip
    assert workload_key(here.cell.what) == workload_key(method.cell.what)
    assert workload_key(here.cell.what) != workload_key(batch.cell.what)
    assert workload_key(here.cell.what) != workload_key(images.cell.what)


def test_a_timing_run_really_trains_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [planned] = cells({"paths.results": str(tmp_path / "results"), "paths.data": str(tmp_path / "data")})
    speed = measure_speed(planned.cell, How.of(planned.config), 17, 0.1)
    assert speed.trained > 0
    assert speed.tested > 0
    assert speed.flops == 17
    assert list(tmp_path.rglob("*.json")) == []


@pytest.mark.parametrize(
    "more",
    [
        {"fleet": "stragglers", "fleet.dropped": True, "fleet.share": 0.9},
        {"partition": "personal", "unseen": 0.4},
    ],
    ids=["the one client would be lost", "the one client would not train"],
)
def test_a_timing_run_has_a_client_whatever_the_cell_does_with_its_own(tmp_path, more):
    [planned] = cells(more)
    assert measure_speed(planned.cell, How(tmp_path, tmp_path), 17, 0.0).trained > 0


def test_a_cell_that_diverges_takes_the_time_until_then(tmp_path):
    """A rate at which nothing trains stops no plan."""
    [planned] = cells({"protocol.lr": 1e5})
    with pytest.raises(Diverged):
        Run(planned.cell, How(tmp_path, tmp_path)).advance()
    assert expected([planned], Results(tmp_path)).seconds > 0


def test_an_impossible_stack_costs_nothing_and_the_reason_is_given(tmp_path):
    cost = expected(cells({"addons": ["feddecorr", "feddecorr"]}), Results(tmp_path))
    assert (cost.seconds, cost.basis, cost.failing) == (0.0, "", ())
    [(one, why)] = cost.impossible
    assert one == 1
    assert "feddecorr" in why


@pytest.mark.usefixtures("short")
def test_cells_that_cannot_run_here_are_counted_apart_with_the_reason(tmp_path):
    results = Results(tmp_path)
    keep(results, *cells({}), 10.0)
    absent = {"dataset": "cifar10", "paths.data": str(tmp_path)}
    cost = expected(cells({"seed": 1}, absent, absent | {"seed": 1}, {"clients": 61}), results)
    assert (cost.seconds, cost.basis) == (10.0, "records for 1 kind of cells")
    [(two, images), (one, clients)] = cost.failing
    assert (two, one) == (2, 1)
    assert "fedspan data fetch cifar10" in images
    assert "61" in clients


@pytest.mark.usefixtures("short")
def test_a_plan_of_which_nothing_can_run_is_an_error(tmp_path):
    with pytest.raises(UserError, match="61"):
        expected(cells({"clients": 61}), Results(tmp_path))


# what workers gain --------------------------------------------------------------------------------


def gain_of(workers, **parts):
    return estimate.spread_gain(helpers.toy_cell(**parts), helpers.how(), workers)


def test_what_workers_gain_is_limited_by_the_largest_client():
    """Six clients of 1, 3, 9, 16, 27 and 38 images, in batches of 8: 1, 1, 2, 2, 4 and 5 steps of 15."""
    assert gain_of(2).times == pytest.approx(15 / 7.5)
    assert gain_of(3).times == gain_of(6).times == pytest.approx(15 / 5)
    assert gain_of(64) == gain_of(6)
    assert gain_of(2).largest == pytest.approx(5 / 15)


def test_no_gain_is_told_of_one_worker_of_one_client_and_of_a_fleet_that_changes_the_steps():
    assert gain_of(1) is None
    assert gain_of(4, participation=0.1) is None
    assert gain_of(4, participation=1e-9, protocol={"sampling": "poisson"}) is None
    assert gain_of(4, fleet=Stragglers()) is None
