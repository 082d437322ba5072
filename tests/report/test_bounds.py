"""What sees the images or features of all clients bounds what methods can reach, and has no place among them."""

import csv
import io

import pytest

from fedspan.benchmark.report import site
from fedspan.benchmark.report.analysis import Analysis, analyse
from fedspan.benchmark.report.axes import Axes
from fedspan.benchmark.report.diagrams import average_ranks, score_against_cost
from fedspan.benchmark.report.frame import collect
from fedspan.benchmark.report.headline import of_table
from fedspan.benchmark.report.render_text import standings_to_csv
from fedspan.benchmark.report.report import write_report
from fedspan.benchmark.report.statistics import Difference
from fedspan.benchmark.report.tabulation import tabulate
from fedspan.benchmark.spec.board import Table
from tests.report.made import SKEWS, board, cells_of, digests_of, record, results_of

SEEDS = {"partition": SKEWS, "seed": [0, 1, 2]}
METHODS = {"algorithm": ["centralized", "fedavg", "fedprox", "fedavgm"]} | SEEDS
MEANS = {"centralized": 90.0, "fedavg": 50.0, "fedprox": 60.0, "fedavgm": 70.0}


@pytest.fixture
def grid():
    return board(METHODS)


def records_of(cells):
    """Return records in which the bound is far ahead; each method costs more than the one before it.

    A seed moves each method in a way of its own.
    """
    return [made(planned, list(MEANS).index(planned.cell.algorithm.name)) for planned in cells]


def made(planned, turn):
    one = record(planned, MEANS[planned.cell.algorithm.name] + 0.3 * ((planned.cell.seed + turn) % 3))
    one["compute"]["flops"]["train"] *= 1 + turn
    return one


def analysed(folder, grid) -> Analysis:
    cells = cells_of(grid)
    return analyse(tabulate(collect(cells, results_of(folder, records_of(cells))), Axes(cells), Table(), 1))


def test_a_bound_has_no_place_and_no_method_loses_to_it(tmp_path, grid):
    analysis = analysed(tmp_path, grid)
    assert [s.row.labels for s in analysis.standings] == [("fedavgm",), ("fedprox",), ("fedavg",)]
    assert [(s.place.text, s.place.field, s.rank) for s in analysis.standings] == [
        ("1", 3, 1),
        ("2", 3, 2),
        ("3", 3, 3),
    ]
    assert analysis.standings[0].wins == 100
    assert of_table(analysis).startswith("FedAvgM leads: ")


def test_a_bound_is_measured_against_the_first_method_beside_the_others(tmp_path, grid):
    analysis = analysed(tmp_path, grid)
    (bound,) = analysis.bounds
    assert bound.row.labels == ("centralized",)
    assert bound.mean == pytest.approx(90.3)
    assert isinstance(bound.difference, Difference)
    assert bound.difference.mean == pytest.approx(40.0)
    assert float(analysis.x(bound.difference.high)) <= 200, "its picture holds it"
    *methods, last = csv.DictReader(io.StringIO(standings_to_csv(analysis)))
    assert (last["method"], last["bound"], last["first_place"], last["mean"]) == ("centralized", "True", "", "90.3")
    assert [line["bound"] for line in methods] == ["False"] * 3
    assert [line["first_place"] for line in methods] == ["1", "2", "3"], "whole numbers, though the bound has none"


def test_a_bound_that_trains_one_model_for_several_partitions_is_one_run_of_each_seed_there(tmp_path):
    grid = board(
        {"algorithm": ["fedavg", "fedprox", "centralized"], "partition": ["iid", "dirichlet"], "seed": list(range(5))}
    )
    cells = cells_of(grid)

    def of(planned):
        name, seed = planned.cell.algorithm.name, planned.cell.seed
        model = "pooled" if name == "centralized" else f"{name} {planned.cell.partition.name}"
        shift = 2.0 * (name == "fedavg" and planned.cell.partition.name == "iid")
        accuracy = (90.0 if name == "centralized" else 50.0) + shift + 0.3 * seed * (model != "pooled")
        return record(planned, accuracy, digests=digests_of(planned, f"{model} {seed}"))

    frame = collect(cells, results_of(tmp_path, [of(planned) for planned in cells]))
    table = tabulate(frame, Axes(cells), Table(columns=("partition",)), 1)
    (bound,) = analyse(table).bounds
    assert (bound.difference.tasks, bound.difference.pairs) == (1, 5)
    assert bound.difference.mean == pytest.approx(90 - 51 - 0.6)


def test_a_bound_is_never_bold_nor_on_the_line_of_what_none_beats(tmp_path, grid):
    analysis = analysed(tmp_path, grid)
    best = [row.labels[0] for row in analysis.table.rows if any(entry.best for entry in row.entries)]
    assert best == ["fedavgm"]
    assert "bold is the highest mean of a column except bounds" in analysis.table.reading
    for diagram in (*average_ranks(analysis), score_against_cost(analysis)):
        assert "FedAvgM" in diagram.inline
        assert "Centralized" not in diagram.inline


def test_bounds_alone_are_ranked_among_themselves(tmp_path):
    addons = [[], ["oracle_head"]]
    analysis = analysed(tmp_path, board({"algorithm": ["centralized"], "addons": addons} | SEEDS))
    assert len(analysis.standings) == 2
    assert analysis.bounds == ()
    assert "except bounds" not in analysis.table.reading


def test_features_of_all_clients_in_one_place_are_a_bound_too(tmp_path):
    addons = [[], ["oracle_head"], ["ccvr"]]
    analysis = analysed(tmp_path, board({"algorithm": ["fedavg"], "addons": addons} | SEEDS))
    assert [bound.row.labels for bound in analysis.bounds] == [("fedavg + oracle_head",)]
    assert len(analysis.standings) == 2


def test_pages_say_that_a_bound_is_one_and_rank_the_methods_without_it(tmp_path, grid):
    cells = cells_of(grid)
    results = results_of(tmp_path / "results", records_of(cells))
    made = write_report(grid, cells, results, tmp_path / "pages")
    page = (tmp_path / "pages" / grid.name / "index.html").read_text()
    assert '<td class="score">bound</td>' in page
    assert "A bound sees the images or features of all clients and does not compete." in page
    ranks = {entry.row["method"]: entry.rank for entry in made.summary.entries}
    assert ranks == {"centralized": None, "fedavgm": 1, "fedprox": 2, "fedavg": 3}
    competing = {result.method for result in made.summary.results if not result.ablation}
    assert competing == {"fedavgm", "fedprox", "fedavg"}


def test_the_best_of_a_dataset_is_that_of_a_method(tmp_path, grid):
    cells = cells_of(grid)
    found = write_report(grid, cells, results_of(tmp_path / "results", records_of(cells)), tmp_path / "pages").summary
    page = site.pages(tmp_path / "pages", [found])[tmp_path / "pages" / "datasets" / "digits.html"].decode()
    best = page.partition("Tasks on this dataset")[2]
    assert "FedAvgM" in best
    assert "Centralized" not in best
