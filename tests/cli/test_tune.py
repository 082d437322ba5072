"""`fedspan tune`, and run, plan and list of boards that tune."""

import json
import re
from pathlib import Path

import pytest
import yaml

from fedspan.benchmark.cli.selections import show_selections
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.selection import select
from fedspan.benchmark.spec.studies import studies_of
from tests.cli.conftest import ONE, records
from tests.records.test_selection import STUDY, read_from

BASE = {
    "dataset.limit": 60, "clients": 2, "partition": "iid", "model.width": 2, "model.features": 4,
    "protocol.rounds": 2, "protocol.local_epochs": 1, "seed": [0, 1],
}  # fmt: skip
ASKED = ("board=mine", "tracking=false", *ONE)


@pytest.mark.parametrize("outcome", ["diverged", "skipped"])
def test_the_table_of_selections_says_why_a_trial_has_no_accuracy(capsys, outcome):
    show_selections([select(STUDY, read_from(STUDY, 5 * [(outcome, outcome)]))])
    [row] = [line for line in capsys.readouterr().out.splitlines() if "0 of 5" in line]
    assert row.count("diverged") == 2 * (outcome == "diverged")
    assert row.count("cannot run") == 2 * (outcome == "skipped")


@pytest.fixture
def tuned(here):
    """Return a function that writes the board `mine`."""

    def write(*algorithms, **tune):
        folder = here / "leaderboards" / "boards"
        folder.mkdir(parents=True, exist_ok=True)
        board = {"base": BASE, "grid": [{"algorithm": list(algorithms)}], "tune": {"trials": 3, "seeds": [100]} | tune}
        (folder / "mine.yaml").write_text(yaml.safe_dump(board))

    return write


def ran(**where):
    """Return (algorithm, seed, validation, rate) of the records."""
    found = []
    for record in records(**where).values():
        protocol = record["spec"]["protocol"]
        name, validation = record["spec"]["algorithm"]["name"], protocol.get("validation", 0)
        found.append((name, record["spec"]["seed"], validation, protocol["lr"]))
    return sorted(found)


def chosen(axes=None):
    return [select(study, Results(Path("results")).read) for study in studies_of({"board": ["mine"]} | (axes or {}))]


def test_tune_runs_the_trials_alone_and_prints_what_they_choose(fedspan, tuned, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    tuned("fedavg", "fednova")
    told = fedspan("tune", *ASKED)
    assert (told.status, told.err) == (0, "")
    assert {(name, seed, validation) for name, seed, validation, _ in ran()} == {
        ("fedavg", 100, 0.15),
        ("fednova", 100, 0.15),
    }
    assert len(ran()) == 6
    assert told.out.splitlines()[-1].startswith("next: fedspan run -m board=")
    assert "next: fedspan report" not in told.out, "no cell of the board has run yet"
    for found in chosen():
        rate = found.study.values_of(found.chosen)["protocol.lr"]
        assert re.search(rf"{found.study.method} .* {found.chosen.number} of 3 +protocol\.lr={rate}", told.out)


def test_run_tunes_and_reports_default_and_tuned_on_seeds_of_their_own(fedspan, tuned):
    tuned("fedavg", space={"protocol.lr": [0.2, 0.4]})
    assert fedspan("run", *ASKED).status == 0
    [found] = chosen()
    best = found.study.values_of(found.chosen)["protocol.lr"]
    trials = [("fedavg", 100, 0.15, rate) for rate in (0.01, 0.2, 0.4)]
    reported = [("fedavg", seed, 0, rate) for seed in (0, 1) for rate in {0.01, best}]
    assert ran() == sorted(trials + reported)


def test_the_second_time_everything_has_a_record(fedspan, tuned):
    tuned("fedavg")
    fedspan("run", *ASKED)
    before = records()
    told = fedspan("run", *ASKED)
    assert told.status == 0
    assert told.out.count("nothing to run") == 2
    assert records() == before


def test_it_goes_on_where_it_stopped_and_chooses_the_same(fedspan, tuned):
    tuned("fedavg")
    fedspan("run", *ASKED)
    before = records()
    [found] = chosen()
    for key in (found.study.cells[1].cell.key, found.tuned[0].cell.key):
        Path(f"results/records/{key}.json").unlink()
    told = fedspan("run", *ASKED)
    assert "3 cells: 2 with a record, 1 to run" in told.out
    assert records() == before


def test_a_frozen_version_holds_its_trials_fixed_too(fedspan, tuned):
    tuned("fedavg")
    fedspan("freeze", "mine")
    tuned("fedavg", trials=4)
    assert fedspan("plan", "board=mine-v1").status == 0
    assert fedspan("freeze", "mine").out.startswith("leaderboards/frozen/mine-v2.yaml")
    path = Path("leaderboards/frozen/mine-v1.yaml")
    path.write_text(path.read_text().replace("trials: 3", "trials: 2"))
    told = fedspan("plan", "board=mine-v1")
    assert (told.status, "its trials at scale=own are no longer those of its version" in told.complaint) == (2, True)
    assert fedspan("plan", "board=mine-v1", "tune.trials=2").status == 0, "that is asked for"


def test_the_share_that_trials_hold_out_is_not_set_for_the_reported_cells(fedspan, tuned):
    tuned("fedavg")
    told = fedspan("run", *ASKED, "protocol.validation=0.3")
    assert (told.status, "; set tune.validation instead" in told.complaint) == (2, True)
    assert not records()


def test_another_method_adds_its_trials_alone(fedspan, tuned):
    tuned("fedavg")
    fedspan("tune", *ASKED)
    tuned("fedavg", "fednova")
    assert "6 cells: 3 with a record, 3 to run" in fedspan("tune", *ASKED).out


def test_of_two_settings_the_one_with_the_better_validation_is_reported(fedspan, tuned, with_toys):
    """The default of this toy learns nothing: its server drops every update."""
    tuned("toy_spaced", space={"protocol.lr": [0.1]}, trials=4)
    more = ("dataset.limit=300", "model.width=8", "model.features=16", "protocol.local_epochs=5")
    fedspan("run", *ASKED, *more)
    [found] = chosen({setting: [int(value)] for setting, _, value in (word.partition("=") for word in more)})
    assert found.study.values_of(found.chosen)["algorithm.factor"] > 0
    assert found.accuracies[found.chosen.number] > found.accuracies[0]
    factors = {record["spec"]["algorithm"]["factor"] for record in records().values() if record["spec"]["seed"] < 100}
    assert factors == {0.0, found.study.values_of(found.chosen)["algorithm.factor"]}


def test_if_every_trial_diverges_the_default_is_reported_and_the_rest_goes_on(fedspan, tuned, with_toys):
    tuned("toy_diverges", "fedavg")
    told = fedspan("run", *ASKED)
    assert told.status == 0
    assert re.search(r"^toy_diverges on .*: all 3 trials diverged: the default is kept$", told.out, re.MULTILINE)
    assert [seed for name, seed, *_ in ran() if name == "toy_diverges"] == [0, 1, 100, 100, 100]
    assert any(seed < 100 for name, seed, *_ in ran() if name == "fedavg")


def test_without_a_failed_trial_s_record_nothing_is_chosen_and_the_rest_goes_on(fedspan, tuned, with_toys):
    tuned("toy_raises", "fedavg")
    told = fedspan("run", *ASKED)
    assert told.status == 1
    assert re.search(r"^toy_raises on .*: no trial has a record yet$", told.out, re.MULTILINE)
    assert {name for name, *_ in ran()} == {"fedavg"}
    assert len(ran()) > 3


def test_plan_counts_trials_and_results_and_says_what_they_will_cost(fedspan, tuned):
    tuned("fedavg", "fednova", space={"protocol.lr": [0.1, 0.2]}, trials=4)
    told = fedspan("plan", *ASKED)
    assert "tuning: 6 trials of 2 studies (a method on a task, 4 trials each): 0 done, 6 missing\n" in told.out
    assert "results: 8 cells: 0 done, 8 missing, at most 4 of them tuned ones that the trials choose\n" in told.out
    assert told.out.count("estimated: ") == 2
    assert told.out.count("the space has 3 points, fewer than 4 trials") == 2
    assert records() == {}
    fedspan("run", *ASKED)
    told = fedspan("plan", *ASKED)
    assert "tuning: 6 trials of 2 studies (a method on a task, 4 trials each): 6 done, 0 missing\n" in told.out
    assert re.search(r"results: \d cells: \d done, 0 missing\n", told.out)


def test_plan_counts_a_single_thing_as_one(fedspan, tuned):
    tuned("fedavg", trials=1)
    told = fedspan("plan", *ASKED)
    assert "tuning: 1 trial of 1 study (a method on a task, 1 trial each): 0 done, 1 missing\n" in told.out


def test_a_board_that_does_not_tune_cannot_be_tuned(fedspan, tuned):
    for asked in ("board=digits", "seed=0"):
        told = fedspan("tune", asked)
        assert told.status == 2
        assert "needs a board that tunes" in told.complaint


@pytest.mark.parametrize("command", ["run", "tune", "plan"])
def test_a_mistake_is_one_line_before_anything_starts(fedspan, tuned, command):
    tuned("fedprox", space={"algorithm.mu": [-1.0]})
    told = fedspan(command, *ASKED)
    assert told.status == 2
    assert "board mine: the search space of algorithm.mu, {-1.0}, leaves its domain" in told.complaint
    assert records() == {}


# list -----------------------------------------------------------------------------------------------


def test_spaces_are_listed_with_their_sources(fedspan, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    told = fedspan("list", "methods", "--spaces")
    assert re.search(r"all +protocol\.lr +0\.01 +\{0\.005, .*\} +SphereFed 2022, App\. F\.2", told.out)
    assert re.search(
        r"fedprox +algorithm\.mu +0\.001 +\{0\.0001, 0\.001, 0\.01, 0\.1\} +FedDecorr 2023, App\. F", told.out
    )
    assert re.search(r"feddecorr +addon\.feddecorr\.beta ", told.out)
    alone = fedspan("list", "methods", "--spaces", "fedprox").out
    assert "algorithm.mu" in alone
    assert "feddecorr.beta" not in alone
    assert "without a search space" not in told.out


def test_a_misspelt_method_gets_a_suggestion(fedspan):
    told = fedspan("list", "methods", "fedprix")
    assert (told.status, told.complaint) == (2, "fedspan: cannot list the method 'fedprix'; did you mean 'fedprox'?")


def test_spaces_of_a_file_s_plugins_are_listed_too(fedspan, here):
    text = """
from typing import Annotated
from fedspan.benchmark.component import Component, algorithm
from fedspan.benchmark.search import log

@algorithm("of_a_file")
class OfAFile(Component):
    \"\"\"Ours (2026).\"\"\"

    pull: Annotated[float, log(0.125, 0.5)] = 0.25
"""
    (here / "mine.py").write_text(text)
    told = fedspan("list", "methods", "--spaces", "of_a_file", "plugins=mine.py")
    assert (told.status, "0.125" in told.out) == (0, True)


def test_a_plan_names_the_settings_that_no_trial_searches(fedspan, tuned, with_toys):
    tuned("fedavg", "fedprox")
    assert "never tuned" not in fedspan("plan", *ASKED).out
    tuned("toy_slow")
    said = "without a search space, so never tuned: toy_slow's algorithm.seconds (docs/new-method.md"
    assert said in fedspan("plan", *ASKED).out
    tuned("toy_slow", space={"algorithm.seconds": [0.0, 0.1]})
    assert "never tuned" not in fedspan("plan", *ASKED).out


@pytest.mark.usefixtures("with_toys")
def test_a_plugin_s_numeric_field_without_a_space_is_named(fedspan):
    told = fedspan("list", "methods", "--spaces", "toy_spaced")
    assert "without a search space, so never tuned: toy_spaced's algorithm.plain" in told.out
    assert json.dumps(told.err) == '""'
