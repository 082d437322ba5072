"""Seconds by phase, on a clock that moves only when it is told to."""

import pytest

from fedspan.benchmark.report.frame import _stages
from fedspan.benchmark.running.cell_run import Outcome, make_record
from fedspan.benchmark.training import evaluation
from fedspan.benchmark.training import meter as meter_module
from fedspan.benchmark.training.meter import Meter
from fedspan.benchmark.training.scoring import score_stages
from fedspan.methods.addons.spherefed import SphereFed
from tests.helpers import toy_cell, trained


@pytest.fixture
def clock(monkeypatch):
    """Return a function that moves the clock by some seconds, in which the process has a processor."""
    now = [0.0]
    for name in ("perf_counter", "process_time"):
        monkeypatch.setattr(meter_module.time, name, lambda: now[0])

    def move(seconds):
        now[0] += seconds

    return move


def test_seconds_of_a_phase_inside_another_one_count_once(clock):
    meter = Meter()
    with meter.phase("prepare"):
        clock(1)
        with meter.phase("net"):
            clock(10)
        clock(100)
    with meter.phase("net"):
        clock(1000)
    assert meter.seconds == {"prepare": 101, "net": 1010}


def test_making_the_classifier_is_timed_and_a_calibration_without_its_scores(clock, monkeypatch):
    """SphereFed 2022, Table 10 and Fig. 5 (d): what its initialisation takes, and a calibration without test images."""

    def slow(where, name, seconds):
        before = getattr(where, name)

        def after(*args, **kwargs):
            clock(seconds)
            return before(*args, **kwargs)

        monkeypatch.setattr(where, name, after)

    slow(SphereFed, "net", 1000)
    slow(SphereFed, "stats", 1)
    slow(SphereFed, "calibrate", 100)
    slow(evaluation, "evaluate_global", 10_000)
    run = trained(toy_cell(None, SphereFed(ffc=True)))
    scores = score_stages(run)
    seconds = {"net": 1000, "evaluate": 50_000, "calibrate": 6, "calibrate_server": 100}
    assert {name: value for name, value in run.meter.seconds.items() if value} == seconds
    cost = _stages(make_record(run.cell, run.how, Outcome(scores=scores), run))["cost"]
    assert (cost["head_seconds"], cost["calibration_seconds"]) == (1000, 101)  # six clients: one second each


def test_seconds_of_a_phase_that_an_error_ends_count_too(clock):
    meter = Meter()

    def failing():
        with meter.phase("local"):
            clock(5)
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert (meter.seconds, meter.processor_seconds) == ({"local": 5}, 5)
