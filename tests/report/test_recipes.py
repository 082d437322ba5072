"""Every setting of a board has a source, and every printed number a cell with the settings that its paper states."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.report import recipe_files, recipe_text, recipes
from fedspan.benchmark.report.report import write_report
from fedspan.benchmark.spec.board import load_board
from fedspan.benchmark.spec.plan import plan

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def boards():
    return recipe_text.all_boards()


@pytest.fixture(scope="module")
def found(boards):
    return recipes.audit(boards)


def test_every_printed_number_has_a_cell_with_the_settings_of_its_paper_or_a_line_that_says_why_not(found):
    assert list(found.problems) == []
    assert found.held + found.excused == found.numbers > 900


def test_every_stated_setting_is_met_by_a_cell(found):
    assert found.matched == found.stated > 300


def test_the_page_is_what_the_data_gives(boards, found):
    """Run `nox -s recipes` where this fails."""
    assert (ROOT / "docs" / "recipes.md").read_text() == recipe_text.to_markdown(boards, found)


def problems(name, **changes):
    """Return what is wrong with a board whose base is changed."""
    board = load_board(name)
    board = replace(board, base=board.base | {key.replace("__", "."): value for key, value in changes.items()})
    return recipes.examine(board, plan(board.expand())).problems


STATED = {
    "the rate of a method": ("spherefed_ffc", {"protocol__lr": 0.5}, "protocol.lr is 0.5, .* states 0.1"),
    "rounds": ("feddecorr_epochs", {"protocol__rounds": 99}, "prints"),
    "weight decay": ("feddecorr_architectures", {"protocol__weight_decay": 1e-3}, "is 0.001, .*Sec. 5.1 states 1e-05"),
    "FedDecorr's beta": ("feddecorr_loss", {"addon__feddecorr__beta": 0.2}, "beta is 0.2, .* states 0.1"),
    "the clients' share": ("spherefed_clients", {"participation": 0.2}, "prints"),
    "normalisation": ("spherefed_rates", {"model__norm": "batch"}, "model.norm is batch, .* states group"),
    "what a figure shows": ("feddecorr_spectra", {"diagnostics__top": 50}, "diagnostics.top is 50, .* states 100"),
}


@pytest.mark.parametrize(("name", "changes", "message"), STATED.values(), ids=STATED)
def test_a_cell_that_differs_from_what_its_paper_states_is_named(name, changes, message):
    assert problems(name) == []
    found = problems(name, **changes)
    assert found
    assert any(re.search(message, problem) for problem in found), found
    assert all("\n" not in problem for problem in found)


def test_a_setting_that_no_line_explains_has_no_source():
    [problem] = problems("feddecorr_loss", partition__min_size=11)
    assert "partition.min_size=11 has no source" in problem


def test_a_line_excuses_a_difference_only_if_it_says_that_it_is_one(monkeypatch):
    assert problems("spherefed_rates") == []
    kept = tuple(replace(line, differs=False) for line in recipe_files.lines().lines)
    monkeypatch.setattr(recipes, "lines", lambda: recipe_files.RecipeLines(kept, ()))
    assert any(
        "protocol.lr is 0.05" in problem and "no line says why" in problem for problem in problems("spherefed_rates")
    )


def test_a_printed_number_that_no_cell_has_is_named():
    board = load_board("feddecorr_architectures")
    less = [planned for planned in plan(board.expand()) if planned.cell.model.name != "resnet32"]
    found = recipes.examine(board, less).problems
    assert len(found) == 6  # two papers' numbers of one model: four and two
    assert all("no cell has what" in problem and "resnet32" in problem for problem in found)


def test_a_number_that_fits_several_cells_is_named():
    board = load_board("feddecorr_architectures")
    twice = [*plan(board.expand()), *plan(board.expand({"protocol.momentum": [0.5]}))]
    assert any("matches 2 different cells" in problem for problem in recipes.examine(board, twice).problems)


def test_a_printed_source_without_settings_is_named():
    board = replace(load_board("feddecorr_loss"), printed=("my_paper/figure_9",))
    found = recipes.examine(board, plan(board.expand({"seed": [0]}))).problems
    assert "board 'feddecorr_loss': my_paper/figure_9 has no settings in hyperparameters.csv" in found


def test_what_nothing_needs_is_named(boards, monkeypatch):
    known = recipe_files.lines()
    stale = recipe_files.RecipeLine(source="released code", set={"clients": 11}, boards=("feddecorr_loss",))
    monkeypatch.setattr(recipes, "lines", lambda: recipe_files.RecipeLines((*known.lines, stale), known.no_cell))
    found = recipes.audit([pair for pair in boards if pair[0].name == "feddecorr_loss"]).problems
    assert "recipes: no cell needs the line clients=11 ()" in found
    assert any(
        "feddecorr_iclr2023, Table 10 (" in problem and "no board names this table" in problem for problem in found
    )


@pytest.fixture
def paper(tmp_path, monkeypatch):
    """A working folder with a copy of the printed numbers."""
    shutil.copytree(ROOT / "results" / "paper", tmp_path / "results" / "paper")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "results" / "paper"


LINES = {
    "- {set: {clients: 3}}": r"mine\.yaml: lines\[0\] \(clients\) has no source: name a paper with its section",
    "- {set: {clients: 3}, source: ours}": r"lines\[0\] \(clients\) is ours and has no reason",
    "- {set: {clients: 3}, source: code, differs: true}": r"differs from a paper and has no reason",
    "- {set: {clients: 3}, sauce: ours}": r"unknown field 'results/paper/recipes/mine\.yaml: lines\[0\]\.sauce'",
    "- {source: ours}": r"lines\[0\] must be a mapping with set and source",
}


@pytest.mark.parametrize(("line", "message"), LINES.items())
def test_a_line_without_source_or_reason_is_one_line(paper, line, message):
    (paper / "recipes" / "mine.yaml").write_text(f"boards: [mine]\nlines:\n  {line}\n")
    with pytest.raises(UserError, match=message) as error:
        recipe_files.lines()
    assert "\n" not in str(error.value)


def test_a_recipe_file_names_its_papers(paper):
    (paper / "recipes" / "mine.yaml").write_text("papers: {mine2026: Mine (2026)}\n")
    assert recipe_files.name_of("mine2026") == "Mine (2026)"
    assert recipe_files.name_of("feddecorr_tpami") == "FedDecorr, journal version"
    assert recipe_files.name_of("unknown2026") == "unknown2026"


def test_names_of_papers_that_are_no_mapping_are_one_line(paper):
    (paper / "recipes" / "mine.yaml").write_text("papers: [mine2026]\n")
    with pytest.raises(
        UserError, match=r"^results/paper/recipes/mine\.yaml: papers must be a mapping of files to names$"
    ):
        recipe_files.lines()


def test_a_stated_setting_says_of_which_setting_or_why_of_none(paper):
    path = paper / "hyperparameters.csv"
    before = path.read_text()
    path.write_text(before + "feddecorr_iclr2023,all,rounds,100,5.1,,,,\n")
    last = len(before.splitlines()) + 1
    with pytest.raises(UserError, match=rf"hyperparameters\.csv line {last}: fill either setting or not_a_setting"):
        recipe_files.stated()


def test_plan_says_what_is_wrong_with_a_board_that_reproduces_something(paper):
    Path("mine.yaml").write_text("printed: [my_paper/figure_1]\ngrid: [{algorithm: fedavg}]\n")
    found = recipes.problems_of({"board": ["mine.yaml"]})
    assert "board 'mine': my_paper/figure_1 has no settings in hyperparameters.csv" in found
    assert any("clients=10 has no source" in problem for problem in found)
    assert recipes.problems_of({"board": ["mine.yaml"], "scale": ["smoke"]}) == []
    assert recipes.problems_of({"seed": [0]}) == []
    Path("own.yaml").write_text("grid: [{algorithm: fedavg}]\n")
    assert recipes.problems_of({"board": ["own.yaml"]}) == []


def test_the_page_of_a_board_shows_where_its_settings_come_from(tmp_path):
    board = load_board("spherefed_ffc")
    smoke = plan(board.expand({"scale": ["smoke"]}))
    write_report(board, smoke, Results(tmp_path), tmp_path / "pages")
    page = (tmp_path / "pages" / "spherefed_ffc" / "smoke" / "index.html").read_text()
    assert "Settings and their sources" in page
    assert "SphereFed (ECCV 2022), Sec. 5.1" in page
    assert "Neither augmentation nor normalisation is stated." in page
