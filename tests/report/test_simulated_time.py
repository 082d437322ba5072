"""Accuracy over the time of a fleet's clock: a curve, a cost in tables, and how soon a target is reached."""

import csv
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure as Canvas

from fedspan.benchmark.report.analysis import reach_targets
from fedspan.benchmark.report.axes import Axes
from fedspan.benchmark.report.drawing import KINDS
from fedspan.benchmark.report.figures import _plot
from fedspan.benchmark.report.frame import collect
from fedspan.benchmark.report.overview import sentence
from fedspan.benchmark.report.panels import _over_time, draw
from fedspan.benchmark.report.render_text import reach_text, targets_to_csv
from fedspan.benchmark.report.summary import task_of
from fedspan.benchmark.report.tabulation import tabulate
from fedspan.benchmark.spec.board import Figure, Table
from tests.report.made import board, cells_of, record, results_of

GRID = {"partition": "iid", "algorithm": ["fedavg", "fedprox"], "seed": [0, 1], "fleet": "speeds", "protocol.rounds": 3}
ROUNDS = [1, 2, 3]


def timed(planned, accuracies, seconds):
    """Return a record whose fleet's clock stands at `seconds` after each round."""
    turns = {"visits": 30, "lost": 4, "cut": 0, "empty_rounds": 0, "seconds": seconds[-1], "seconds_at_round": seconds}
    return record(planned, curve={"round": ROUNDS, "accuracy": accuracies}, fleet=turns)


@pytest.fixture(scope="module")
def frame(tmp_path_factory):
    """Return cells and frame: FedProx gets as far as FedAvg a round earlier, each seed at its own pace."""
    cells = cells_of(board(GRID))
    accuracies = {"fedavg": [20.0, 40.0, 60.0], "fedprox": [30.0, 60.0, 70.0]}
    records = [
        timed(p, accuracies[p.cell.algorithm.name], [s * (1.0 + p.cell.seed) for s in (10.0, 20.0, 30.0)])
        for p in cells
    ]
    return cells, collect(cells, results_of(tmp_path_factory.mktemp("results"), records))


def test_a_target_is_also_told_in_simulated_seconds(frame):
    cells, found = frame
    targets = reach_targets(tabulate(found, Axes(cells), Table(), 1), found)
    (late,), (soon,) = (reached for _, reached in targets.rows)
    assert (late.simulated, soon.simulated) == (45.0, 30.0)
    assert reach_text(soon)[1].endswith("· 30.0 s simulated")
    lines = list(csv.DictReader(io.StringIO(targets_to_csv(targets))))
    assert [float(line["simulated_seconds"]) for line in lines] == [45.0, 30.0]


def test_tables_show_what_the_clock_says_and_who_was_lost(frame):
    cells, found = frame
    metrics = {"simulated_seconds": 45.0, "simulated_seconds_per_round": 15.0, "lost_visits": 4.0}
    for name, mean in metrics.items():
        table = tabulate(found, Axes(cells), Table(metric=f"cost.{name}"), 1)
        assert [row.entries[0].mean for row in table.rows] == [mean, mean]
        assert table.metric.better == -1


def test_a_figure_shows_accuracy_over_simulated_time(frame):
    cells, found = frame
    drawing = draw(found, Axes(cells), Figure(kind="accuracy_over_time"), 1)
    [panel] = drawing.panels
    assert drawing.problems == ()
    assert [line.x.tolist() for line in panel.lines] == [[20.0, 30.0]] * 2, "from the first of all to the end of one"
    assert [line.mean.tolist() for line in panel.lines] == [[30.0, 40.0], [45.0, 50.0]]


def test_panels_over_time_have_one_range_of_it(tmp_path):
    """A deadline ends sooner: that is what their reader compares."""
    cells = cells_of(board(GRID | {"fleet": [{"fleet": "speeds"}, {"fleet": "speeds", "fleet.deadline": 5.0}]}))
    ends = {0.0: 40.0, 5.0: 15.0}
    records = [timed(p, [20.0, 40.0, 60.0], np.linspace(5, ends[p.cell.fleet.deadline], 3).tolist()) for p in cells]
    found = collect(cells, results_of(tmp_path, records))
    drawing = draw(found, Axes(cells), Figure(kind="accuracy_over_time", columns=("fleet",)), 1)
    plots = [Canvas().add_subplot() for _ in drawing.panels]
    for plot, panel in zip(plots, drawing.panels, strict=True):
        _plot(plot, drawing, panel, (0, 100))
    assert plots[0].get_xlim() == plots[1].get_xlim() == pytest.approx((4.3, 40.7))


def test_without_a_clock_the_figure_says_what_is_lacking(tmp_path):
    cells = cells_of(board(GRID | {"fleet": "dropout"}))
    found = collect(cells, results_of(tmp_path, [record(planned) for planned in cells]))
    drawing = draw(found, Axes(cells), Figure(kind="accuracy_over_time"), 1)
    assert "no simulated time; choose a fleet with a clock" in drawing.problems[0]
    targets = reach_targets(tabulate(found, Axes(cells), Table(), 1), found)
    assert "simulated" not in targets_to_csv(targets)
    assert "simulated" not in reach_text(targets.rows[0][1][0])[1]


def test_a_fleet_is_an_axis_and_part_of_a_task():
    plain, clocked = (cells_of(board(GRID | {"fleet": fleet}))[0] for fleet in ("reliable", "speeds"))
    assert (task_of(plain).fleet, task_of(clocked).fleet) == ("", "speeds")
    assert sentence(task_of(clocked)).endswith(", Speeds")
    assert task_of(plain) != task_of(clocked)
    assert Axes([plain, clocked]).labels("fleet") == ["reliable", "speeds"]


curves = st.lists(st.floats(0.1, 9), min_size=1, max_size=6).map(
    lambda steps: (np.cumsum(steps), np.arange(len(steps), dtype=float))
)


@given(st.lists(curves, min_size=1, max_size=4))
def test_over_time_each_seed_stands_where_its_last_evaluation_left_it(runs):
    times, values = _over_time(runs)
    assert len(times) >= 1
    assert (np.diff(times) > 0).all()
    for row, (seconds, accuracies) in zip(values, runs, strict=True):
        assert row.tolist() == [accuracies[seconds <= time][-1] for time in times]
    if len(runs) == 1:
        assert times.tolist() == runs[0][0].tolist()


def test_no_band_of_an_accuracy_leaves_the_percents():
    assert {kind.ends for kind in KINDS.values() if kind.y.endswith("(%)")} == {(0.0, 100.0)}
