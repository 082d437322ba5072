"""`fedspan report`: one clear line per mistake, and the rest is still built."""

import json
import re

import pytest

from fedspan.benchmark.cli.main import main
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.spec.board import load_board
from fedspan.benchmark.spec.overrides import axes_of
from fedspan.benchmark.spec.plan import plan, plan_grid
from fedspan.benchmark.spec.presets import yaml_files
from tests.report.made import record

GOOD = """
title: A board
base: {dataset: digits, clients: 5, protocol: digits}
grid:
  - {algorithm: [fedavg, fedprox], partition: iid, seed: [0, 1]}
scales:
  smoke: {protocol.rounds: 2}
tables:
  - {title: Accuracy, rows: [method], columns: [partition]}
"""


@pytest.fixture
def boards(tmp_path, monkeypatch):
    """A folder of boards in the place of the checkout's and its versions, with one good board; write more into it."""
    folder = tmp_path / "boards"
    folder.mkdir()
    (folder / "good.yaml").write_text(GOOD)

    def files(kind):
        own = {"boards": folder.glob("*.yaml"), "frozen": ()}
        return {path.stem: path for path in sorted(own[kind])} if kind in own else yaml_files(kind)

    for module in ("spec.board", "cli.report"):
        monkeypatch.setattr(f"fedspan.benchmark.{module}.yaml_files", files)
    return folder


@pytest.fixture
def report(tmp_path, capsys, unchanged_process):
    def report(*words):
        status = main(["report", f"paths.results={tmp_path}", f"paths.pages={tmp_path / 'pages'}", *words])
        said = capsys.readouterr()
        return status, said.out, [line for line in said.err.splitlines() if line.strip()]

    return report


@pytest.mark.usefixtures("boards", "unchanged_process")
def test_the_home_folder_is_that_of_the_pages_too(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    keep(tmp_path, [record(one) for one in cells()])
    assert main(["report", "board=good", f"paths.results={tmp_path}", "paths.pages='~/site'"]) == 0
    assert (tmp_path / "home" / "site" / "index.html").is_file()


def cells(scale="own"):
    return plan(load_board("good").expand({"scale": [scale]}))


def keep(tmp_path, records):
    for one in records:
        Results(tmp_path).write(one)


def test_the_page_of_a_board_is_not_overwritten_by_some_of_its_cells(boards, report, tmp_path, monkeypatch, capsys):
    keep(tmp_path, [record(planned) for planned in cells()])
    monkeypatch.chdir(tmp_path)
    assert main(["report", "board=good", "seed=0", f"paths.results={tmp_path}"]) == 0
    assert f"these are not the cells of the board, so its page goes to {tmp_path}/pages" in capsys.readouterr().err
    assert not (tmp_path / "leaderboards").exists()
    assert (tmp_path / "pages" / "good" / "index.html").exists()
    (tmp_path / "pages" / "good" / "index.html").unlink()
    assert report("board=good", "seed=0")[::2] == (0, []), "where a folder is named"
    assert (tmp_path / "pages" / "good" / "index.html").exists()


def test_the_page_of_a_board_is_not_overwritten_by_some_of_its_trials(boards, report, tmp_path, monkeypatch, capsys):
    (boards / "good.yaml").write_text(GOOD + "tune: {trials: 3, seeds: [9]}\n")
    monkeypatch.chdir(tmp_path)
    assert main(["report", "board=good", "tune.trials=2", f"paths.results={tmp_path}"]) == 0
    assert "with 'tune.trials' these are not the cells of the board" in capsys.readouterr().err
    assert not (tmp_path / "leaderboards").exists()
    assert (tmp_path / "pages" / "good" / "index.html").exists()


def test_a_board_that_cannot_be_read_is_one_line_and_the_others_are_built(boards, report, tmp_path):
    keep(tmp_path, [record(planned) for planned in cells()])
    (boards / "axis.yaml").write_text(GOOD.replace("algorithm:", "algoritm:"))
    (boards / "empty.yaml").write_text(GOOD.replace("[fedavg, fedprox]", "[]"))
    (boards / "broken.yaml").write_text("grid: [")
    status, _out, errors = report()
    assert status == 2
    assert (tmp_path / "pages" / "good" / "index.html").exists()
    assert (tmp_path / "pages" / "index.html").exists()
    named = [next(name for name in ("axis", "broken", "empty") if f"'{name}'" in line) for line in errors]
    assert named == ["axis", "broken", "empty"], errors
    assert "did you mean 'algorithm'?" in errors[0]
    assert not any("Traceback" in line for line in errors)


def test_a_table_that_names_cells_outside_its_grid_is_left_out_alone(boards, report, tmp_path):
    more = "  - {title: Nothing, rows: [method], columns: [partition], where: {algorithm: moon}}\n"
    (boards / "good.yaml").write_text(GOOD + more)
    keep(tmp_path, [record(planned) for planned in cells()])
    status, _out, errors = report("board=good")
    assert status == 2
    assert errors == ["fedspan: table 2: it is left out: where: algorithm=moon selects no cell; known: fedavg, fedprox"]
    assert (tmp_path / "pages" / "good" / "table-1.csv").exists()
    assert not (tmp_path / "pages" / "good" / "table-2.csv").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: one.pop("scores"), "it lacks scores"),
        (lambda one: one.update(schema=99), "its schema is 99"),
        (lambda one: one["spec"].update(clients=99), "its key does not match its spec"),
        (lambda one: one["scores"]["trained"].update(accuracy=float("nan")), "JSON is malformed"),
        (lambda one: one["scores"]["trained"].update(accuracy=123.0), "outside 0..100"),
    ],
)
def test_a_record_that_is_none_is_one_line_and_the_rest_is_built(boards, report, tmp_path, change, said):
    planned = cells()
    keep(tmp_path, [record(one) for one in planned])
    path = Results(tmp_path).path(planned[0].cell.key)
    bad = json.loads(path.read_text())
    bad.pop("digest")
    change(bad)
    path.write_text(json.dumps(bad))
    status, out, errors = report("board=good")
    assert status == 2
    assert " ".join(" ".join(errors).split()).count("is passed over") == 1, errors
    assert said in " ".join(" ".join(errors).split())
    assert "n=1/2" in out
    assert (tmp_path / "pages" / "good" / "index.html").exists()


def test_each_scale_with_results_has_a_page_and_scales_never_meet(boards, report, tmp_path):
    keep(tmp_path, [record(planned, 80.0) for planned in cells()])
    keep(tmp_path, [record(planned, 20.0) for planned in cells("smoke")])
    status, _out, errors = report()
    assert (status, errors) == (0, [])
    pages = tmp_path / "pages"
    for page, mine, other in (("good", "80.00", "20.00"), ("good/smoke", "20.00", "80.00")):
        text = (pages / page / "table-1.md").read_text()
        assert mine in text
        assert other not in text
    data = (pages / "index.html").read_text()
    assert '"scales":["own","smoke"]' in data


def on_the_site(tmp_path):
    """Return the pages that the leaderboard is made from."""
    pages = tmp_path / "pages"
    said = (pages / "index.html").read_text()
    return {str(path.parent.relative_to(pages)) for path in pages.glob("**/results.json")} if "good/" in said else set()


def test_a_report_of_one_scale_leaves_the_pages_of_the_others_on_the_leaderboard(boards, report, tmp_path):
    keep(tmp_path, [record(planned) for scale in ("own", "smoke") for planned in cells(scale)])
    report()
    report("scale=smoke")
    assert on_the_site(tmp_path) == {"good", "good/smoke"}
    assert '"scales":["own","smoke"]' in (tmp_path / "pages" / "index.html").read_text()


def test_a_board_of_two_scales_has_two_pages(boards, report, tmp_path):
    keep(tmp_path, [record(planned, 80.0) for planned in cells()])
    keep(tmp_path, [record(planned, 20.0) for planned in cells("smoke")])
    assert report("board=good", "scale=own,smoke")[::2] == (0, [])
    assert on_the_site(tmp_path) == {"good", "good/smoke"}
    assert "20.00" not in (tmp_path / "pages" / "good" / "table-1.md").read_text()


def test_numbers_that_only_show_that_everything_works_are_those_of_the_smallest_scale(boards, report, tmp_path):
    (boards / "good.yaml").write_text(GOOD.replace("scales:", "scales:\n  small: {protocol.rounds: 3}"))
    keep(tmp_path, [record(planned) for scale in ("small", "smoke") for planned in cells(scale)])
    report()
    pages = {scale: (tmp_path / "pages" / "good" / scale / "index.html").read_text() for scale in ("small", "smoke")}
    assert {scale: "only show that everything works" in page for scale, page in pages.items()} == {
        "small": False, "smoke": True,
    }  # fmt: skip
    assert all("not comparable with printed" in page for page in pages.values())


def test_a_board_that_can_no_longer_be_read_keeps_its_earlier_page_on_the_leaderboard(boards, report, tmp_path):
    (boards / "other.yaml").write_text(GOOD.replace("clients: 5", "clients: 7"))
    keep(tmp_path, [record(planned) for name in ("good", "other") for planned in plan(load_board(name).expand())])
    report()
    (boards / "other.yaml").write_text("title: [")
    assert report()[0] == 2
    assert on_the_site(tmp_path) == {"good", "other"}
    (boards / "other.yaml").unlink()
    assert report()[0] == 0
    assert on_the_site(tmp_path) == {"good"}


def test_boards_without_results_are_named_and_stale_methods_go(boards, report, tmp_path):
    (boards / "later.yaml").write_text(GOOD.replace("A board", "For later").replace("clients: 5", "clients: 7"))
    keep(tmp_path, [record(planned) for planned in cells()])
    stale = tmp_path / "pages" / "methods" / "gone.html"
    stale.parent.mkdir(parents=True)
    stale.write_text("old")
    status, _out, _errors = report()
    assert status == 0
    assert "For later" in (tmp_path / "pages" / "index.html").read_text()
    assert not stale.exists()
    assert (tmp_path / "pages" / "methods" / "fedprox.html").exists()


def test_the_commands_of_a_page_name_the_folder_of_results_that_it_was_made_from(boards, report, tmp_path):
    keep(tmp_path, [record(planned) for planned in cells()])
    report()
    pages = [tmp_path / "pages" / "good" / "index.html", next((tmp_path / "pages" / "runs").glob("*.html"))]
    for page in pages:
        verify = re.search(r"fedspan verify [^<]*", page.read_text())[0]
        assert verify.endswith(f" paths.results={tmp_path}"), verify


def test_an_empty_results_folder_leaves_the_site_as_it_is(boards, report, tmp_path, capsys):
    keep(tmp_path, [record(planned) for planned in cells()])
    assert report()[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "pages").glob("**/*") if path.is_file()}
    (tmp_path / "empty").mkdir()
    assert main(["report", f"paths.results={tmp_path / 'empty'}", f"paths.pages={tmp_path / 'pages'}"]) == 2
    assert f"so the site in {tmp_path / 'pages'} stays as it is; set paths.results=DIR" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before


def test_an_empty_results_folder_leaves_the_page_of_a_named_board_as_it_is(boards, report, tmp_path, capsys):
    keep(tmp_path, [record(planned) for planned in cells()])
    assert report("board=good")[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "pages").glob("**/*") if path.is_file()}
    (tmp_path / "empty").mkdir()
    elsewhere = (f"paths.results={tmp_path / 'empty'}", f"paths.pages={tmp_path / 'pages'}")
    assert main(["report", "board=good", *elsewhere]) == 2
    assert "no record of board 'good' in " in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before
    assert main(["report", "board=good", "scale=smoke", *elsewhere]) == 0, "it has no page yet that could lose anything"


def test_a_table_without_results_is_a_line_on_the_terminal_and_its_page_says_how_to_run_it(boards, report, tmp_path):
    _, out, _ = report("board=good", "scale=smoke")
    assert out.startswith("1 of 1 table without results yet\npage: ")
    page = (tmp_path / "pages" / "good" / "smoke" / "index.html").read_text()
    assert "This command runs it: <code>fedspan run -m board=good scale=smoke paths.results=" in page
    keep(tmp_path, [record(planned) for planned in cells("smoke")[:1]])
    _, out, _ = report("board=good", "scale=smoke")
    assert out.startswith("Table 1. Accuracy")


def test_settings_without_a_record_are_no_sweep_to_show(report, tmp_path):
    keep(tmp_path, [record(planned) for planned in swept("seed=0", "protocol.rounds=3")])
    for words, said in ((("seed=0",), "this cell"), (("seed=0,1",), "these 2 cells")):
        status, _, errors = report(*words)
        assert status == 2
        assert errors == [
            f"fedspan: no record of {said} in {tmp_path}; give the settings of 'fedspan run', or set paths.results=DIR"
        ]


def test_the_page_of_a_board_in_a_file_of_its_own_stays_on_the_site(boards, report, tmp_path):
    (tmp_path / "mine.yaml").write_text(GOOD.replace("A board", "My board"))
    keep(tmp_path, [record(planned) for planned in cells()])
    assert report(f"board={tmp_path / 'mine.yaml'}")[0] == report()[0] == 0
    assert on_the_site(tmp_path) == {"good", "mine"}
    assert "My board" in (tmp_path / "pages" / "index.html").read_text()


def test_an_empty_results_folder_gives_a_site_that_says_what_to_do(boards, report, tmp_path):
    status, _out, errors = report()
    assert (status, errors) == (0, [])
    assert "No board has results yet" in (tmp_path / "pages" / "index.html").read_text()


def test_a_board_without_the_scale_that_is_asked_for_is_passed_over(boards, report, tmp_path):
    (boards / "one.yaml").write_text(GOOD.split("scales:")[0])
    keep(tmp_path, [record(planned) for planned in cells("smoke")])
    status, out, errors = report("scale=smoke")
    assert (status, errors) == (0, [])
    assert "good/smoke/index.html" in out
    assert not (tmp_path / "pages" / "one").exists()


def test_a_board_is_reported_by_the_path_that_it_is_given_by(report, tmp_path):
    (tmp_path / "mine.yaml").write_text(GOOD)
    status, out, errors = report(f"board={tmp_path / 'mine.yaml'}")
    assert (status, errors) == (0, [])
    assert "A board" in (tmp_path / "pages" / "mine" / "index.html").read_text()
    assert "mine" in out


SWEEP = ("algorithm=fedavg,fedprox", "protocol.lr=0.1,0.01", "clients=5,10", "seed=0,1", "protocol.rounds=3")


def swept(*words):
    return plan_grid(axes_of(words))


def test_a_sweep_has_a_page_with_a_table_of_what_varies(report, tmp_path):
    keep(tmp_path, [record(planned) for planned in swept(*SWEEP)[:-1]])
    status, out, errors = report(*SWEEP)
    assert (status, errors) == (0, [])
    assert f"page: {tmp_path / 'pages' / 'sweep' / 'index.html'}" in out
    table = (tmp_path / "pages" / "sweep" / "table-1.csv").read_text().splitlines()
    assert [line.split(",")[:3] for line in table[1:]] == [
        [method, lr, clients] for method in ("fedavg", "fedprox") for lr in ("0.1", "0.01") for clients in ("5", "10")
    ]
    page = (tmp_path / "pages" / "sweep" / "index.html").read_text()
    assert "Sweep over algorithm, learning rate, clients and seed" in page
    assert "15 of 16" in page
    assert f"fedspan run -m {' '.join(SWEEP)} paths.results=" in page
    assert "FedProx" in (tmp_path / "pages" / "index.html").read_text()


@pytest.mark.usefixtures("unchanged_process")
def test_the_page_of_a_sweep_stays_off_the_leaderboard(tmp_path, monkeypatch, capsys):
    keep(tmp_path, [record(planned) for planned in swept("seed=0")])
    monkeypatch.chdir(tmp_path)
    assert main(["report", "seed=0", f"paths.results={tmp_path}"]) == 0
    assert "A run by itself" in (tmp_path / "pages" / "sweep" / "index.html").read_text()
    assert not (tmp_path / "leaderboards").exists()
    assert capsys.readouterr().err == ""


def test_a_sweep_shows_the_accuracy_by_which_its_methods_are_compared(report, tmp_path):
    words = ("partition=pathological", "algorithm=fedavg,local_only", "protocol.rounds=3")
    scores = {"trained": {"accuracy": 40.0, "client_accuracy": 60.0}}
    keep(tmp_path, [record(planned, scores=scores) for planned in swept(*words)])
    assert report(*words)[0] == 0
    assert "60" in (tmp_path / "pages" / "sweep" / "table-1.md").read_text()
    assert not (tmp_path / "pages" / "sweep" / "table-2.md").exists()


def test_runs_of_no_board_are_not_passed_over_in_silence(boards, report, tmp_path):
    keep(tmp_path, [record(planned) for planned in swept("seed=5")])
    status, _, errors = report()
    assert status == 0
    assert errors == [
        f"fedspan: {tmp_path} has 1 run, none of a board; to show them, give 'fedspan report' the settings of "
        "'fedspan run'"
    ]
    assert "No board has results yet." in (tmp_path / "pages" / "index.html").read_text()


@pytest.mark.parametrize("words", [(), ("board=good",)], ids=["all boards", "another board"])
def test_a_damaged_file_of_no_board_is_named_and_makes_a_report_of_all_boards_end_with_2(
    boards, report, tmp_path, words
):
    keep(tmp_path, [record(planned) for planned in cells()])
    (tmp_path / "records" / "a\x1b[2J.json").write_text("{")
    status, _, errors = report(*words)
    assert status == (0 if words else 2)
    assert "a\\x1b[2J.jsonispassedover" in "".join("".join(errors).split()), "wherever its line is wrapped"
    assert all("\x1b[2J" not in line for line in errors)
