"""Trials are no results: pages, tables and MLflow keep them apart."""

import pytest

from fedspan.benchmark.mirror.runs import Mirror
from fedspan.benchmark.report.frame import collect
from fedspan.benchmark.report.report import write_report
from fedspan.benchmark.report.summary import read
from fedspan.benchmark.spec.board import Table
from tests.report.made import board, cells_of, record, results_of, stopped, trial

GRID = {"partition": "iid", "algorithm": ["fedavg", "fedprox"], "protocol.validation": [0.0, 0.15], "seed": [0, 1]}


def made(cells, accuracy):
    return [trial(one, 99.0) if one.cell.protocol.trial else record(one, accuracy) for one in cells]


@pytest.fixture
def mixed(tmp_path):
    """A board whose grid holds both, its cells and their records."""
    tables = [Table(), Table(rows=("algorithm",), columns=("protocol.validation",))]
    example = board(GRID, tables=tables)
    cells = cells_of(example)
    return example, cells, results_of(tmp_path, made(cells, 50.0))


def test_a_trial_is_no_result_of_its_board(mixed, tmp_path):
    example, cells, results = mixed
    write_report(example, cells, results, tmp_path / "pages")
    [found] = [read(path) for path in tmp_path.rglob("results.json")]
    assert {result.method for result in found.results} == {"fedavg", "fedprox"}
    assert {value for result in found.results for value in result.seeds.values()} == {50.0}
    assert {entry.mean for entry in found.entries} == {50.0}


def test_a_trial_that_diverged_is_none_either(mixed, tmp_path):
    example, cells, _ = mixed
    lost = [one for one in cells if one.cell.protocol.trial]
    others = [one for one in cells if not one.cell.protocol.trial]
    diverged = [stopped(one, "diverged", "round 2: the validation loss is nan") for one in lost]
    results = results_of(tmp_path / "other", made(others, 50.0) + diverged)
    write_report(example, cells, results, tmp_path / "pages")
    [found] = [read(path) for path in tmp_path.rglob("results.json")]
    assert [result.diverged for result in found.results] == [0, 0]


def test_a_table_of_test_scores_says_that_trials_have_none(mixed, tmp_path):
    example, cells, results = mixed
    write_report(example, cells, results, tmp_path / "pages")
    page = "".join(path.read_text() for path in tmp_path.rglob("*.md"))
    assert "finished, but without trained.accuracy" in page
    assert "99.00" not in page


def test_the_frame_has_their_scores_and_costs_and_no_curve(mixed):
    _, cells, results = mixed
    frame = collect(cells, results)
    for planned, row in zip(cells, frame.itertuples(index=False), strict=True):
        assert (row.curve is None) == planned.cell.protocol.trial
        assert ("final" in row.stages) != planned.cell.protocol.trial
        assert "cost" in row.stages


def test_mlflow_tells_them_by_a_tag_and_by_the_names_of_their_metrics(mixed, empty_store, tmp_path, monkeypatch):
    _, _, results = mixed
    empty_store(results.root)
    mirror = Mirror(results)
    mirror.sync()
    runs = mirror.client.search_runs([mirror.experiment])
    trials = [run for run in runs if "validation" in run.data.tags]
    assert len(trials) == 4
    assert {run.data.tags["validation"] for run in trials} == {"0.15"}
    for run in trials:
        assert run.data.metrics["validation.accuracy"] == 99.0
        assert {"validation.curve.accuracy", "curve.accuracy"} & set(run.data.metrics) == {"validation.curve.accuracy"}
    for run in runs:
        assert ("trained.accuracy" in run.data.metrics) == ("curve.accuracy" in run.data.metrics) == (run not in trials)
