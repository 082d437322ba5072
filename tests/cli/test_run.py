"""`fedspan run` as users meet it: one cell, sweeps, boards, and what happens when the command is repeated."""

import json
import shlex
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from fedspan.benchmark.records.results import Results
from fedspan.benchmark.running import cell_run
from fedspan.benchmark.running.job import run_job
from fedspan.benchmark.running.leases import Busy, Leases
from fedspan.benchmark.spec.compose import resolve
from fedspan.benchmark.spec.overrides import settings_of
from fedspan.benchmark.training.scoring import score_stages
from tests.cli.conftest import ONE, QUICK, failures, records
from tests.helpers import NOWHERE

GRID = ("run", "-m", *QUICK, *ONE)


def times(folder="results"):
    return {path.name: path.stat().st_mtime_ns for path in Path(folder).rglob("*.json")}


# one cell -----------------------------------------------------------------------------------------


def test_one_cell_prints_its_accuracy_and_where_its_record_is(fedspan):
    ran = fedspan("run", *QUICK)
    assert (ran.status, ran.err) == (0, "")
    [record] = records().values()
    score, path = ran.out.splitlines()
    assert f"{record['scores']['trained']['accuracy']:.2f}%" in score
    assert "fedavg on digits/iid, 2 clients, seed 0" in score
    assert json.loads(Path(path).read_text())["key"] == record["key"]


def test_a_run_leaves_nothing_but_its_results(fedspan, here):
    fedspan("run", *QUICK)
    assert [path.name for path in here.iterdir()] == ["results"]
    assert {path.stem for path in (here / "results" / "records").iterdir()} == set(records())
    left = {path.parent.name for path in (here / "results").rglob("*") if path.is_file()}
    assert left <= {"records", "trained"}


def test_the_second_time_the_record_is_found_and_nothing_computed(fedspan):
    fedspan("run", *QUICK)
    before = times()
    ran = fedspan("run", *QUICK)
    assert ran.status == 0
    assert "already has a record" in ran.out
    assert times() == before


def test_the_command_in_the_record_runs_the_same_cell_again(fedspan):
    fedspan("run", *QUICK, "algorithm=fedprox", "algorithm.mu=0.5", "addons=[feddecorr]", "addon.feddecorr.form=paper")
    [path] = Path("results/records").glob("*.json")
    command = json.loads(path.read_text())["provenance"]["command"]
    before = records()
    path.unlink()
    assert fedspan(*shlex.split(command)[1:]).status == 0
    assert records() == before


def test_the_command_in_the_record_does_not_tell_where_this_machine_keeps_its_files(fedspan):
    assert fedspan("run", *QUICK, "paths.results=kept/results", "paths.data=kept/data").status == 0
    [path] = Path("kept/results/records").glob("*.json")
    command = json.loads(path.read_text())["provenance"]["command"]
    assert "kept" not in command
    assert "tracking" not in command


def test_several_values_ask_for_a_grid(fedspan):
    ran = fedspan("run", *QUICK, "seed=0,1")
    assert ran.status == 2
    assert "several values need -m: fedspan run -m" in ran.complaint
    assert records() == {}


# grids --------------------------------------------------------------------------------------------


def test_a_sweep_runs_every_combination(fedspan):
    ran = fedspan(*GRID, "algorithm=fedavg,fedprox", "seed=0,1")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith("4 cells: 0 with a record, 4 to run with workers=1\n")
    found = {(record["spec"]["algorithm"]["name"], record["spec"]["seed"]) for record in records().values()}
    assert found == {("fedavg", 0), ("fedavg", 1), ("fedprox", 0), ("fedprox", 1)}
    for number in range(1, 5):
        assert f"[{number}/4]" in ran.out


def test_a_grid_and_single_runs_give_the_same_records(fedspan):
    fedspan(*GRID, "seed=0,1")
    for seed in (0, 1):
        fedspan("run", *QUICK, f"seed={seed}", "paths.results=alone")
    assert records("alone") == records() != {}


def test_a_finished_grid_computes_nothing_again(fedspan):
    fedspan(*GRID, "seed=0,1")
    before = times()
    ran = fedspan(*GRID, "seed=0,1")
    assert ran.status == 0
    assert ran.out.startswith("2 cells: 2 with a record, nothing to run\n")
    assert times() == before


def test_a_grid_over_a_record_of_a_later_version_says_that_it_is_neither_used_nor_replaced(fedspan):
    command = ("run", "-m", *QUICK, *ONE, "seed=0,1")
    fedspan(*command)
    path = min(Path("results/records").glob("*.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 2}))
    ran = fedspan(*command)
    assert ran.status == 1
    kept = "1 with an unusable record (move it away to rerun)"
    assert f"2 cells: 1 with a record, {kept}, nothing to run" in ran.out


def test_a_larger_grid_runs_only_what_is_new(fedspan):
    fedspan(*GRID, "seed=0,1")
    before = times()
    ran = fedspan(*GRID, "seed=range(0,3)")
    assert "3 cells: 2 with a record, 1 to run" in ran.out
    assert before.items() < times().items()


def test_a_deleted_record_is_computed_again_with_the_same_numbers(fedspan):
    fedspan(*GRID, "seed=0,1,2")
    before, stamps = records(), times()
    lost = Path("results/records", f"{sorted(before)[1]}.json")
    lost.unlink()
    ran = fedspan(*GRID, "seed=0,1,2")
    assert "3 cells: 2 with a record, 1 to run" in ran.out
    assert records() == before
    changed = {name for name, stamp in times().items() if stamps[name] != stamp}
    assert changed == {lost.name}


def test_who_lost_its_cell_while_it_scored_leaves_the_record_of_who_took_it_over(fedspan, monkeypatch):
    fedspan("run", *QUICK, "paths.results=others")
    [theirs] = Path("others/records").glob("*.json")

    def taken_over(run):
        Leases(Path("results/leases")).forget(run.cell.key)
        shutil.copytree("others/records", "results/records", dirs_exist_ok=True)
        return score_stages(run)

    monkeypatch.setattr(cell_run, "score_stages", taken_over)
    assert fedspan("run", *QUICK).status == 0
    assert Path("results/records", theirs.name).read_bytes() == theirs.read_bytes()


def test_who_lost_its_cell_and_then_fails_leaves_it_to_who_took_it_over(here, monkeypatch):
    results = Results(here / "results")
    config = resolve(settings_of(QUICK[:-1]) | {"paths.results": str(results.root)})

    def taken_over(run):
        number, owner = Leases(results.leases).newest(run.cell.key)
        theirs = asdict(owner) | {"machine": "another", "host": "far"}
        (results.leases / f"{run.cell.key}.{number + 1}.json").write_text(json.dumps(theirs))
        raise MemoryError

    monkeypatch.setattr(cell_run, "score_stages", taken_over)
    with pytest.raises(Busy):
        run_job(config, QUICK)
    assert results.failed() == []
    assert len([*results.status.iterdir()]) == 1


def test_the_order_in_which_a_grid_is_written_changes_no_record(fedspan):
    fedspan(*GRID, "seed=0,1", "algorithm=fedavg,fedprox")
    fedspan(*GRID, "algorithm=fedprox,fedavg", "seed=1,0", "paths.results=again")
    assert records("again") == records() != {}


# boards -------------------------------------------------------------------------------------------


@pytest.fixture
def board(here):
    settings = dict(setting.split("=", 1) for setting in QUICK)
    described = {
        "base": {name: yaml.safe_load(value) for name, value in settings.items()} | {"workers": 1},
        "grid": [
            {"algorithm": ["fedavg", "fedprox"], "seed": [0, 1]},
            {"algorithm": "fedavg", "addons": [["feddecorr"]], "seed": [0, 1]},
        ],
        "scales": {"smoke": {"protocol.rounds": 1}},
    }
    path = here / "leaderboards" / "boards" / "mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(described))
    return path


def test_a_board_of_the_working_folder_runs_by_its_name(fedspan, board):
    ran = fedspan("run", "board=mine")
    assert (ran.status, len(records())) == (0, 6)
    assert fedspan("run", "-m", f"board={board}").out.startswith("6 cells: 6 with a record")


def test_settings_replace_those_of_the_board(fedspan, board):
    fedspan("run", "board=mine", "seed=7", "algorithm=fedprox")
    assert {(r["spec"]["seed"], r["spec"]["algorithm"]["name"]) for r in records().values()} == {(7, "fedprox")}
    assert len(records()) == 2


def test_the_next_command_shows_the_cells_that_ran(fedspan, board):
    ran = fedspan("run", "board=mine", "seed=7,8", "workers=1", "paths.results=there")
    [step] = [line.removeprefix("next: ") for line in ran.out.splitlines() if line.startswith("next: ")]
    assert step == "fedspan report board=mine seed=7,8 paths.results=there"
    assert fedspan(*shlex.split(step)[1:]).status == 0
    assert Path("there/pages/mine/index.html").read_text().count("6 of 6")


def test_the_next_command_names_all_boards_that_ran(fedspan, board):
    Path("leaderboards/boards/other.yaml").write_text(Path("leaderboards/boards/mine.yaml").read_text())
    ran = fedspan("run", "-m", "board=mine,other", "workers=1")
    assert "next: fedspan report board=mine,other\n" in ran.out


def test_a_report_draws_the_partitions_of_its_results_only(fedspan, here):
    split = {"dataset": "digits", "partition": ["iid", "pathological"], "protocol.rounds": 1}
    (here / "split.yaml").write_text(yaml.safe_dump({"base": split, "grid": [{"algorithm": "fedavg"}]}))
    fedspan("run", "board=split.yaml", "partition=pathological", "workers=1", "tracking=false")
    assert fedspan("report", "board=split.yaml").status == 0
    [picture] = Path("leaderboards/pages/partitions").glob("*.json")
    assert "2 of 10 classes per client" in json.loads(picture.read_text())["words"]


def test_settings_that_only_the_boards_tasks_know_replace_its_own(fedspan, here):
    (here / "split.yaml").write_text(
        yaml.safe_dump({"title": "Split", "base": {"partition": "pathological"}, "grid": [{"algorithm": "fedavg"}]})
    )
    quick = [setting for setting in QUICK if setting != "partition=iid"]
    ran = fedspan("run", *quick, "board=split.yaml", "partition.classes_per_client=5")
    assert (ran.status, ran.err) == (0, "")
    assert [record["spec"]["partition"]["classes_per_client"] for record in records().values()] == [5]


def test_a_smaller_scale_without_a_board_is_said_to_be_a_label(fedspan, board):
    assert "scale=smoke is only a label without a board" in fedspan("run", "--cfg", "job", "scale=smoke").err
    for words in (["scale=paper"], ["board=mine", "scale=smoke", "seed=0"]):
        assert "only a label" not in fedspan("run", "--cfg", "job", *words).err


def test_a_scale_is_part_of_the_cell(fedspan, board):
    fedspan("run", "board=mine", "scale=smoke", "seed=0")
    assert {(r["spec"]["scale"], r["spec"]["protocol"]["rounds"]) for r in records().values()} == {("smoke", 1)}


# failures -----------------------------------------------------------------------------------------


def toys_file():
    return sys.modules["toys"].__file__


@pytest.mark.usefixtures("with_toys")
def test_a_failing_cell_never_stops_the_others(fedspan):
    algorithms = "algorithm=toy_raises,toy_quits,toy_diverges,toy_picky,fedavg"
    ran = fedspan(*GRID, algorithms, "seed=0,1")
    assert ran.status == 1
    by_status = {}
    for record in [*records().values(), *failures()]:
        by_status.setdefault(record["status"], set()).add(record["spec"]["algorithm"]["name"])
    assert by_status == {
        "done": {"fedavg"},
        "failed": {"toy_raises", "toy_quits"},
        "diverged": {"toy_diverges"},
        "skipped": {"toy_picky"},
    }
    lines = ran.err.splitlines()
    for name, error in (
        ("toy_raises", "RuntimeError: the toy broke; expected: "),
        ("toy_quits", "SystemExit: enough; "),
    ):
        [line] = [
            line for line in lines if line.startswith(f"failed: {name} on digits/iid, 2 clients, seed 0 and 1 more: ")
        ]
        kept = [f"results/failures/{one['key']}.json" for one in failures() if one["spec"]["algorithm"]["name"] == name]
        assert f"algorithm '{name}', server ({toys_file()}, line " in line
        assert f"): {error}" in line
        assert any(f"(kept in {path};" in line for path in kept), "a grid names the file of a failure"
    assert len(lines) == 2
    assert "skipped: toy_picky on digits/iid, 2 clients, seed 0 and 1 more: toy_picky needs 1,000 classes" in ran.out
    assert "diverged: toy_diverges on digits/iid, 2 clients, seed 0 and 1 more: round 2" in ran.out


def test_cells_whose_images_no_setting_names_fail_beside_others_however_often_they_are_tried(fedspan, here):
    for name, base in (("here", {}), ("nowhere", NOWHERE)):
        (here / f"{name}.yaml").write_text(yaml.safe_dump({"base": base, "grid": [{"algorithm": "fedavg"}]}))
    for done in (0, 1):
        ran = fedspan("run", *QUICK, *ONE, "-m", "board=nowhere.yaml,here.yaml")
        assert ran.status == 1
        assert ran.out.startswith(f"2 cells: {done} with a record")
        assert "dataset.source is not set" in ran.err


@pytest.mark.usefixtures("with_toys")
def test_a_failure_is_kept_beside_the_records_with_its_reason_and_where_it_happened(fedspan):
    fedspan(*GRID, "algorithm=toy_raises")
    [failure] = failures()
    assert failure["reason"].startswith(f"algorithm 'toy_raises', server ({toys_file()}, line ")
    assert "): RuntimeError: the toy broke; expected: Return (delta, server tree)" in failure["reason"]
    assert "toys.py" in failure["traceback"]
    assert records() == {}


@pytest.mark.usefixtures("with_toys")
def test_a_failed_cell_is_tried_again_and_its_failure_forgotten_when_it_works(fedspan, here):
    word = f"algorithm.until={here / 'mended'}"
    assert fedspan(*GRID, "algorithm=toy_raises", word).status == 1
    assert fedspan(*GRID, "algorithm=toy_raises", word).status == 1
    (here / "mended").touch()
    ran = fedspan(*GRID, "algorithm=toy_raises", word)
    assert (ran.status, ran.err) == (0, "")
    assert (len(records()), failures()) == (1, [])


@pytest.mark.usefixtures("with_toys")
def test_impossible_and_diverged_cells_are_results_and_not_tried_again(fedspan):
    assert fedspan(*GRID, "algorithm=toy_picky,toy_diverges").status == 0
    before = times()
    assert fedspan(*GRID, "algorithm=toy_picky,toy_diverges").status == 0
    assert times() == before


def test_a_grid_of_impossible_cells_alone_ends_as_it_does_the_second_time(fedspan):
    first, again = (fedspan(*GRID, "addons=[ccvr,oracle_head]") for _ in range(2))
    assert (first.status, again.status) == (0, 0), first.out
    assert "skipped" in first.out
    assert "without outcome" not in first.out


@pytest.mark.usefixtures("with_toys")
def test_a_diverged_cell_keeps_the_curve_up_to_there(fedspan):
    ran = fedspan("run", *QUICK, "algorithm=toy_diverges")
    assert ran.status == 0
    [record] = records().values()
    assert record["curve"]["round"] == [1]
    assert record["reason"].startswith("round 2")
    assert record["scores"] == {}


@pytest.mark.usefixtures("with_toys")
def test_a_single_run_that_fails_says_so_in_one_line(fedspan):
    ran = fedspan("run", *QUICK, "algorithm=toy_raises")
    [failure] = failures()
    assert ran.status == 1
    assert ran.complaint == (
        f"fedspan: toy_raises on digits/iid, 2 clients, seed 0: failed: {failure['reason']} "
        f"(kept in results/failures/{failure['key']}.json; traceback=true shows where in the code)"
    )


@pytest.mark.usefixtures("with_toys")
@pytest.mark.parametrize("command", [("run",), GRID])
def test_a_traceback_is_shown_on_request(fedspan, command):
    ran = fedspan(*command, *(QUICK if command == ("run",) else ()), "algorithm=toy_raises", "traceback=true")
    first, second, *middle, last = ran.err.splitlines()
    assert "algorithm 'toy_raises', server" in first
    assert second == "Traceback (most recent call last):"
    assert any(f'File "{toys_file()}", line ' in line for line in middle)
    assert "the toy" in middle[-1] + last


# plugins that do not load ---------------------------------------------------------------------------


def test_toys_are_gone_outside_their_tests():
    assert "toys" not in sys.modules
