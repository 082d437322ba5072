"""Tables of costs that follow from shapes alone, at the scale of the papers, beside what the papers print."""

import pytest

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.report.analysis import analyse, reach_targets
from fedspan.benchmark.report.axes import Axes
from fedspan.benchmark.report.frame import collect
from fedspan.benchmark.report.printed import Printed
from fedspan.benchmark.report.render_text import entry_text, to_markdown
from fedspan.benchmark.report.tabulation import tabulate
from fedspan.benchmark.spec.board import Table, load_board
from fedspan.benchmark.spec.plan import plan
from fedspan.benchmark.training import costs
from tests.report.made import board, cells_of, results_of, seeded


def tables_of(name, scale, folder):
    """Return the computed tables of a board of which nothing was ever run, by metric."""
    known = load_board(name)
    cells = plan(known.expand({"scale": [scale], "paths.data": [str(folder / "no data")]}))
    frame = collect(cells, Results(folder / "results"), computed=True)
    return {
        table.metric.removeprefix("computed."): tabulate(frame, Axes(cells), table, number)
        for number, table in enumerate(known.tables, 1)
        if table.metric.startswith("computed.")
    }


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return tables_of("spherefed_cost", "paper", tmp_path_factory.mktemp("classifier"))


def numbers(table):
    return [row.entries[0].mean for row in table.rows]


def test_spherefeds_table_1_is_that_of_the_shapes(classifier):
    """l = 1280, C = 100, D = 50,000, 100 rounds of 10 epochs, 4 bytes; Table 1 prints 102, 758, 7 and 1.9e4."""
    head, covariances, moments = 1280 * 100, 1280 * 1280 * 100, 1280 * (1280 + 100)
    megabytes = [2 * 100 * 4 * head, 2 * 100 * 4 * head + 4 * (100 + head + covariances), 4 * moments]
    assert numbers(classifier["classifier_megabytes"]) == pytest.approx([size / 1e6 for size in megabytes])
    assert [round(size) for size in numbers(classifier["classifier_megabytes"])] == [102, 758, 7]
    gigaflop = numbers(classifier["classifier_gflop"])
    assert gigaflop[0] == 3 * head * 50_000 * 10 * 100 / 1e9
    assert gigaflop[2] == pytest.approx(2 * moments * 50_000 / 1e9, rel=0.005)


def test_every_row_that_differs_from_print_says_why(classifier):
    for table in classifier.values():
        for row in table.rows:
            entry = row.entries[0]
            assert entry.printed.within != bool(entry.marks), row.labels
    notes = dict(classifier["classifier_gflop"].notes)
    assert [row.entries[0].printed.within for row in classifier["classifier_gflop"].rows] == [True, False, False]
    assert "epochs are not stated" in notes["a"]
    assert "the print cuts" in notes["b"]


def test_computed_costs_are_of_the_papers_scale_whatever_is_asked_for(classifier, tmp_path):
    small = tables_of("spherefed_cost", "smoke", tmp_path)
    assert numbers(small["classifier_megabytes"]) == numbers(classifier["classifier_megabytes"])


def test_a_computed_table_says_so_and_is_never_taken_for_measured(classifier):
    table = classifier["classifier_megabytes"]
    assert "not measured" in table.caption
    assert "equal shares" in table.caption
    assert "printed 102, +0.4 to rounding" in entry_text(table, table.rows[0].entries[0])
    assert not table.costs
    assert not any(entry.best for row in table.rows for entry in row.entries)
    assert analyse(table) is None
    assert "±" not in to_markdown(table).split("Table 1")[-1]


def test_records_change_nothing_in_a_computed_table(tmp_path):
    cells = cells_of(board())

    def parameters(folder, records):
        frame = collect(cells, results_of(tmp_path / folder, records), computed=True)
        table = tabulate(frame, Axes(cells), Table(metric="computed.parameters"), 1)
        assert reach_targets(table, frame) is None
        return to_markdown(table)

    assert parameters("with", seeded(cells)) == parameters("without", [])


def test_costs_that_cannot_be_known_say_why(tmp_path, monkeypatch):
    def absent(cell, folder):
        raise UserError("dataset 'x' is not here")

    monkeypatch.setattr(costs, "costs", absent)
    cells = cells_of(board())
    frame = collect(cells, results_of(tmp_path, []), computed=True)
    table = tabulate(frame, Axes(cells), Table(metric="computed.parameters"), 1)
    assert {entry.state for row in table.rows for entry in row.entries} == {"skipped"}
    assert [note for _, note in table.notes] == ["skipped: dataset 'x' is not here"]


@pytest.mark.parametrize(("printed", "unit", "same"), [(102, 1, True), (103, 1, False), (1.0e2, 10, True)])
def test_rounding_is_half_a_unit_of_the_last_printed_digit(printed, unit, same):
    number = Printed("p", "1", "r", "c", "m", value=printed, std=None, settings={}, note="", unit=unit)
    assert number.is_rounded_from(102.4) is same
