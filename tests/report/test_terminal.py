"""A table on a terminal: the best first, human names, nothing wider than the terminal, no number lost."""

import io
import re

import pytest
from rich.console import Console

from fedspan.benchmark.report import render_terminal
from fedspan.benchmark.report.headline import of_table
from fedspan.benchmark.report.report import write_report
from tests.report.made import board, cells_of, record, results_of, seeded


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("terminal")
    example = board()
    cells = cells_of(example)
    return write_report(example, cells, results_of(folder / "results", seeded(cells)), folder / "pages").tables


def shown(tables, width):
    console = Console(file=io.StringIO(), width=width)
    for table, analysis in tables:
        render_terminal.show(table, analysis, console)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_line_is_wider_than_the_terminal_and_every_number_is_there(tables, width):
    said = shown(tables, width)
    assert max(map(len, said.splitlines())) <= width
    [(table, _)] = tables
    assert {f"{entry.mean:.2f}" for row in table.rows for entry in row.entries} <= set(re.findall(r"\d+\.\d\d", said))


def test_rows_stand_in_the_order_of_their_places(tables):
    [(table, analysis)] = tables
    names = [render_terminal._name(table, standing.row) for standing in analysis.standings]
    said = shown(tables, 200)
    assert sorted(names, key=lambda name: said.index(f" {name}  ")) == names


def test_the_headline_of_the_page_stands_above_the_table(tables):
    [(_, analysis)] = tables
    assert (said := of_table(analysis))
    assert f"{said}\n" in shown(tables, 200)


@pytest.mark.parametrize(("seeds", "places"), [([0], ["—", "—"]), ([0, 1, 2, 3, 4], ["1", "2"])])
def test_places_are_those_of_the_page_and_none_follows_from_one_seed(tmp_path, seeds, places):
    example = board({"partition": "iid", "algorithm": ["fedavg", "fedprox"], "seed": seeds})
    cells = cells_of(example)
    scores = {"fedavg": (50.0, 50.4, 49.7, 50.1, 50.2), "fedprox": (60.0, 60.9, 59.2, 60.0, 60.5)}
    records = [record(p, scores[p.cell.algorithm.name][p.cell.seed]) for p in cells]
    made = write_report(example, cells, results_of(tmp_path / "results", records), tmp_path / "pages")
    assert re.findall(r"^ *(\S+) +Fed", shown(made.tables, 200), re.MULTILINE) == places
    page = (tmp_path / "pages" / "example" / "index.html").read_text()
    assert re.findall(r'<td class="score value">(—|\d=?)</td><td class="cost wide-only">', page) == places


def test_a_table_of_many_columns_stands_in_parts_with_all_names_and_no_broken_number(tmp_path):
    skews = [
        {"partition": "dirichlet", "partition.alpha": alpha} for alpha in (0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
    ]
    example = board({"partition": skews, "algorithm": ["fedavg", "fedprox"], "seed": [0, 1, 2]})
    cells = cells_of(example)
    made = write_report(example, cells, results_of(tmp_path / "results", seeded(cells)), tmp_path / "pages")
    said = shown(made.tables, 80)
    [(table, _)] = made.tables
    for row in table.rows:
        assert all(f"{entry.mean:.2f} ± {entry.std:.2f}" in said for entry in row.entries)
    heads = [render_terminal._heading(table, i) for i in range(len(table.columns))]
    lines = [line for line in said.splitlines() if any(re.search(rf"\b{re.escape(head)}\b", line) for head in heads)]
    assert len(lines) > 1, "parts, each with a line of headings"
    assert len(re.findall("FedProx", said)) >= len(lines)


def test_the_best_of_each_column_is_bold(tables):
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system="standard")
    [(table, analysis)] = tables
    render_terminal.show(table, analysis, console)
    best = {f"{entry.mean:.2f}" for row in table.rows for entry in row.entries if entry.best}
    assert set(re.findall(r"\x1b\[1m(\d+\.\d\d) ±", console.file.getvalue())) == best != set()


def test_methods_have_their_human_names(tables):
    said = shown(tables, 200)
    assert "FedAvg" in said
    assert "fedavg" not in said
