"""The papers' boards at the smoke scale: every cell of every table and every panel of every figure is filled."""

import pytest

from fedspan.benchmark.records.results import Results
from fedspan.benchmark.report.axes import Axes
from fedspan.benchmark.report.frame import collect
from fedspan.benchmark.report.panels import draw
from fedspan.benchmark.report.report import write_report
from fedspan.benchmark.report.tabulation import tabulate
from fedspan.benchmark.running.cell_run import run_cell
from fedspan.benchmark.spec.board import load_board
from fedspan.benchmark.spec.plan import plan
from fedspan.benchmark.spec.presets import yaml_files
from fedspan.benchmark.spec.settings import How

EVERYTHING = [board.name for board in load_board("everything").parts()]
QUICK = {  # every kind of figure, and what measures more than scores
    "feddecorr_linear", "feddecorr_loss", "feddecorr_spectra", "feddecorr_sphere", "spherefed_alignment",
    "spherefed_cost", "spherefed_features", "spherefed_rates",
}  # fmt: skip


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """One results folder: boards share cells."""
    return tmp_path_factory.mktemp("boards")


def check(name, folder, **extra):
    board = load_board(name)
    cells = plan(board.expand({"scale": ["smoke"], **extra}))
    how = How(folder / "results", folder / "data")
    assert {run_cell(planned.cell, how)["status"] for planned in cells} == {"done"}
    computed = any(table.metric.startswith("computed.") for table in board.tables)
    frame, axes = collect(cells, Results(how.results), computed), Axes(cells)
    for number, table in enumerate(board.tables, 1):
        made = tabulate(frame, axes, table, number)
        assert made.problems == ()
        assert made.scales == ("smoke",)
        assert all(entry.state == "value" for row in made.rows for entry in row.entries if entry), table.title
        if table.printed:  # but for a number per domain: the domains of a stand-in have other names
            named = any(entry.printed for row in made.rows for entry in row.entries if entry)
            assert named is not table.metric.endswith(".*")
            assert named is not any(remark.startswith("No number in") for remark in made.remarks)
    for number, figure in enumerate(board.figures, 1):
        drawing = draw(frame, axes, figure, number)
        assert drawing.problems == ()
        assert drawing.panels
        assert not any(panel.empty for panel in drawing.panels), figure.title
    made = write_report(board, cells, Results(how.results), folder / "pages")
    assert made.problems == []
    suffixes = {path.suffix for path in made.written}
    assert {".html", ".md", ".csv", ".tex"} <= suffixes
    assert ({".svg", ".pdf", ".png"} <= suffixes) >= bool(board.figures)


@pytest.mark.parametrize("name", sorted(QUICK))
def test_a_board_fills_its_tables_and_figures_and_has_a_page(folder, name):
    check(name, folder, seed=[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERYTHING)
def test_every_board_fills_its_tables_and_figures_and_has_a_page(folder, name):
    check(name, folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(yaml_files("boards")))
def test_every_board_has_a_page_before_there_is_any_record(tmp_path, name):
    board = load_board(name)
    made = write_report(board, plan(board.expand({})), Results(tmp_path / "results"), tmp_path / "pages")
    assert made.problems == []


def test_everything_is_every_board_of_the_papers_but_those_that_repeat_their_searches():
    of_papers = {name for name in yaml_files("boards") if name.startswith(("feddecorr_", "spherefed_"))}
    of_papers = {name for name in of_papers if load_board(name).tune is None}
    assert set(EVERYTHING) == of_papers | {"fidelity"}
