import io

import pytest
from rich.console import Console

from benchmark import estimate
from benchmark.board import plan
from benchmark.estimate import calibrate, family
from benchmark.record import Results
from benchmark.rounds import How, Outcome, make_record

SMALL = {"dataset.limit": 60, "clients": 3, "model.width": 2, "model.features": 4, "partition.min_size": 5}


def cells(*overrides):
    return plan([SMALL | more for more in overrides])


@pytest.fixture
def asked(monkeypatch):
    """Count calibrations; each says 100 seconds."""
    calls = []
    monkeypatch.setattr(estimate, "calibrate", lambda planned: calls.append(planned.cell.key) or 100.0)
    return calls


def keep(results, planned, seconds):
    record = make_record(
        planned.cell, How(results.root, results.root), Outcome(scores={"trained": {"accuracy": 1.0}}), None
    )
    results.write(record | {"compute": {"seconds": {"total": seconds}}})


def expected(missing, results):
    return estimate.estimate(missing, results, Console(file=io.StringIO()))


def test_cells_that_differ_in_seed_or_partition_cost_the_same():
    names = {family(planned.cell.what) for planned in cells({}, {"seed": 1}, {"partition.alpha": 9.0})}
    assert len(names) == 1


@pytest.mark.parametrize("more", [{"clients": 4}, {"protocol.rounds": 3}, {"algorithm": "fedprox"}, {"model.width": 3}])
def test_cells_that_differ_in_anything_else_do_not(more):
    here, there = cells({}, more)
    assert family(here.cell.what) != family(there.cell.what)


def test_records_of_like_cells_give_their_mean(tmp_path, asked):
    results = Results(tmp_path)
    done = cells({"seed": 0}, {"seed": 1})
    for planned, seconds in zip(done, (10.0, 20.0), strict=True):
        keep(results, planned, seconds)
    cost = expected(cells({"seed": 2}, {"seed": 3}), results)
    assert (cost.seconds, cost.basis, asked) == (30.0, "1 kinds of cells from records", [])


def test_every_other_kind_is_calibrated_once(tmp_path, asked):
    results = Results(tmp_path)
    keep(results, *cells({"clients": 4}), 10.0)
    cost = expected(cells({"seed": 0}, {"seed": 1}, {"algorithm": "fedprox"}, {"clients": 4, "seed": 1}), results)
    assert len(asked) == 2
    assert cost.seconds == 310.0
    assert cost.basis == "1 kinds of cells from records, 2 kinds calibrated now"


def test_a_calibration_scales_what_the_second_round_took_to_the_whole_cell(monkeypatch):
    def advance(run):
        first = not run.meter.images
        run.meter.images += 40
        run.meter.seconds |= {"prepare": 5.0, "local": 100.0 if first else 102.0, "evaluate": 7.0 if first else 7.6}

    monkeypatch.setattr(estimate.Run, "advance", advance)
    [planned] = cells(
        {
            "dataset.limit": 500, "protocol.rounds": 10, "protocol.local_epochs": 2, "protocol.eval_every": 5,
            "protocol.batch_size": 15, "participation": 0.4, "clients": 5,
        }
    )  # fmt: skip
    probed = 60  # test images: as many as four batches
    training = 10 * 2 * 500 * 0.4 * (2.0 / 40)
    evaluation = (2 + 1) * 359 * (0.6 / probed)
    assert calibrate(planned) - (training + evaluation) == pytest.approx(0, abs=0.5)  # what preparing took


def test_a_calibration_really_trains_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [planned] = cells({"paths.results": str(tmp_path / "results"), "paths.data": str(tmp_path / "data")})
    assert calibrate(planned) > 0
    assert list(tmp_path.rglob("*.json")) == []


def test_an_impossible_stack_costs_nothing():
    [planned] = cells({"addons": ["feddecorr", "feddecorr"]})
    assert calibrate(planned) == 0.0
