"""The commands around `run`: what they show and what they write."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedspan.benchmark import numerics
from fedspan.benchmark.cli import choices
from fedspan.benchmark.cli.main import COMMANDS
from fedspan.benchmark.places import interpreter
from fedspan.benchmark.registry import KINDS, plugins
from fedspan.benchmark.running.launchers import LAUNCHERS
from fedspan.benchmark.spec.settings import SCALES
from fedspan.benchmark.training.executors import EXECUTORS
from tests.cli.conftest import ONE, QUICK, ROOT, records
from tests.helpers import PATIENCE

# help -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_names_every_command_with_a_few_words(fedspan, word):
    ran = fedspan(word)
    assert (ran.status, ran.err) == (0, "")
    described = dict(re.findall(r"^  (\w+) +(\w.{10,90})$", ran.out, re.MULTILINE))
    assert set(COMMANDS) <= set(described)


def test_a_started_command_imports_nothing_from_the_working_folder(here):
    Path("fedspan.py").write_text("print('mine')")
    ran = subprocess.run(
        [*interpreter(), "-m", "fedspan", "--version"], capture_output=True, text=True, timeout=PATIENCE
    )
    assert ran.stdout.startswith("fedspan ")


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"run"}))
def test_each_command_explains_itself_and_does_nothing(fedspan, here, command):
    for words in (["--help"], ["board=absent", "-h"]):
        ran = fedspan(command, *words)
        assert (ran.status, ran.err) == (0, "")
        assert f"fedspan {command}" in ran.out
    assert list(here.iterdir()) == []


def test_the_help_of_run_shows_the_choices_and_every_default(fedspan, here):
    ran = fedspan("run", "--help")
    assert ran.status == 0
    assert ran.out.startswith("usage: fedspan run ")
    for kind, plural in KINDS.items():
        own = [name for name, cls in plugins(kind).items() if cls.__module__.startswith("fedspan.")]
        assert f"\n{plural if kind == 'addon' else kind}: {', '.join(own)}\n" in ran.out
    for line in ("clients: 10", "participation: 1.0", "paths.results: results", "workers: null", "tracking: true"):
        assert f"\n{line}\n" in ran.out
    assert list(here.iterdir()) == []


LOADED = (
    "import sys; from fedspan.benchmark.cli.main import main; main(sys.argv[2:]);"
    "print(*sorted({*sys.argv[1].split()} & sys.modules.keys()))"
)


def loaded(libraries, words):
    """Return those of some libraries that a command has imported when it ends."""
    command = [sys.executable, "-c", LOADED, libraries, *words]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return ran.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["rnu"], ["run", "--help"], ["verify", "--help"], ["completion", "bash"]]
)
def test_help_the_version_and_typos_do_not_wait_for_torch(here, words):
    assert loaded("torch", words) == ""


@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["run", "--cfg", "job"],
        ["run", *QUICK],
        ["verify"],
        ["validate", "results"],
        ["cite", "board=digits"],
        ["sync", "--from", "elsewhere"],
    ],
)
def test_no_command_waits_for_libraries_that_it_does_not_use(here, words):
    assert loaded("torch torch._inductor pandas scipy matplotlib mlflow", words) == "torch"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fedspan ver", {"verify"}),
        ("fedspan run algorithm=fedpro", {"algorithm=fedprox", "algorithm=fedproto"}),
        ("fedspan plan board=digits_", {"board=digits_all", "board=digits_tuned"}),
        ("fedspan run particip", {"participation="}),
        ("fedspan list metho", {"methods"}),
        ("fedspan list methods fedpro", {"fedprox", "fedproto"}),
        ("fedspan cite board=digits_t", {"board=digits_tuned"}),
        ("fedspan completion f", {"fish"}),
        ("fedspan run board=digits-", {"board=digits-v1"}),
        ("fedspan run launcher=sub", {"launcher=submitit", "launcher=submitit_local"}),
        ("fedspan run protocol=def", {"protocol=default"}),
        ("fedspan run 'addons=[fedd", {"addons=[feddecorr"}),
        ("fedspan run 'addons=[ffc,dec", {"addons=[ffc,decov"}),
    ],
)
def test_a_shell_completes_commands_settings_and_names(here, line, expected):
    answer = here / "answer"
    environment = os.environ | {
        "_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9",
        "_ARGCOMPLETE_SHELL": "bash", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
    }  # fmt: skip
    subprocess.run([sys.executable, "-m", "fedspan"], env=environment, timeout=PATIENCE, check=True)
    assert {word.strip() for word in re.split("[\\v\\x0b]", answer.read_text()) if word.strip()} == expected


def test_the_words_of_a_completion_are_those_of_the_engine():
    assert {
        "executor": tuple(sorted(EXECUTORS)),
        "launcher": tuple(sorted(LAUNCHERS)),
        "numerics": tuple(sorted(numerics.MODES)),
        "protocol": ("default",),
        "scale": SCALES,
    } == choices.WORDS


def test_the_settings_of_a_command_can_be_shown_without_running_it(fedspan, here):
    ran = fedspan("run", "--cfg", "job", "algorithm=fedprox", "algorithm.mu=0.25")
    assert ran.status == 0
    assert "algorithm:\n  name: fedprox\n  mu: 0.25\n" in ran.out
    assert list(here.iterdir()) == []


def test_version_prints_name_and_number(fedspan):
    assert re.fullmatch(r"fedspan \d+\.\d+\.\d+\n", fedspan("--version").out)


# list -----------------------------------------------------------------------------------------------


def test_the_list_of_everything_is_names_and_what_to_ask_next(fedspan):
    ran = fedspan("list")
    assert (ran.status, ran.err) == (0, "")
    words = set(re.findall(r"[\w-]+", ran.out))
    assert {*KINDS.values(), "protocols", "boards", "feddecorr_cifar10", "digits_all"} <= words
    assert {name for kind in KINDS for name in plugins(kind)} <= words
    assert len(ran.out.splitlines()) <= 40
    assert "fedspan list methods NAME" in ran.out


def test_a_kind_is_listed_alone_with_summaries_and_papers_in_80_columns(fedspan, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ran = fedspan("list", "algorithms")
    assert re.search(r"fedavg +Clients train locally.*McMahan", ran.out)
    assert "feddecorr" not in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_methods_are_algorithms_and_addons(fedspan):
    words = set(re.findall(r"\w+", fedspan("list", "methods").out))
    assert {*plugins("algorithm"), *plugins("addon")} <= words
    assert "cifar10" not in words


def test_boards_and_protocols_are_listed_with_sizes_and_settings(fedspan, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    ran = fedspan("list", "protocols", "boards")
    assert re.search(r"feddecorr_cifar10 .*rounds=100", ran.out)
    assert re.search(r"digits +[A-Z].* [0-9]+ *$", ran.out, re.MULTILINE)


def test_one_plugin_is_told_with_its_settings_and_links(fedspan, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    ran = fedspan("list", "methods", "fedprox")
    assert ran.out.startswith("FedProx  algorithm=fedprox\nA proximal term")
    assert re.search(r"algorithm\.mu +a number +0\.001 +\{0\.0001, 0\.001, 0\.01, 0\.1\}", ran.out)
    assert "https://arxiv.org/abs/1812.06127" in ran.out
    assert "FedAvg" not in ran.out
    assert "addons=[feddecorr]" in fedspan("list", "addons", "feddecorr").out


def test_the_settings_of_a_plugin_are_listed_with_the_values_that_they_take(fedspan, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    found = fedspan("list", "methods", "feddecorr", "fedproto").out
    assert re.search(r"addon\.feddecorr\.form +released, paper, pseudocode +released", found)
    assert "{" not in found.partition("Tan et al. 2022. ")[2]  # braces of BibTeX
    found = fedspan("list", "fleets", "speeds").out
    assert re.search(r"fleet\.deadline +a number +0\.0", found)
    assert "tuned over" not in found
    assert re.search(r"dataset\.limit +a whole number +0", fedspan("list", "datasets", "digits").out)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["metods"], "cannot list 'metods'; did you mean 'methods'?"),
        (["datasets", "cifar1"], "cannot list the dataset 'cifar1'; did you mean 'cifar10'?"),
        (["boards", "digts"], "cannot list the board 'digts'; did you mean 'digits'?"),
        (
            ["boards", "digits"],
            "'digits' has no details to list; 'fedspan plan board=digits' counts its cells",
        ),
    ],
)
def test_what_cannot_be_listed_gets_a_suggestion(fedspan, words, complaint):
    ran = fedspan("list", *words)
    assert (ran.status, ran.complaint) == (2, f"fedspan: {complaint}")


@pytest.mark.usefixtures("with_toys")
def test_a_registered_plugin_is_listed_and_chosen_like_any_other(fedspan):
    assert "toy_slow" in fedspan("list", "algorithms").out
    assert "name: toy_slow" in fedspan("run", "--cfg", "job", "algorithm=toy_slow").out


def test_a_reader_who_leaves_early_harms_nothing(start):
    process = start("list")
    process.stdout.close()
    process.wait(timeout=PATIENCE)
    assert process.stderr.read() == ""


# plan -----------------------------------------------------------------------------------------------


def test_a_plan_counts_what_is_done_missing_and_failed_and_runs_nothing(fedspan):
    words = (*QUICK, *ONE, "clients=2,61", "seed=0,1")
    words = tuple(word for word in words if word != "clients=2")
    fedspan("run", "-m", *words[:-1], "seed=0")
    before = records()
    ran = fedspan("plan", *words)
    assert ran.status == 0
    lines = ran.out.splitlines()
    assert lines[0] == "4 cells: 1 done, 3 missing"
    assert lines[1] == "1 of the missing failed before and will be retried"
    assert re.fullmatch(r"estimated: \d+ s of one core, \d+ s with workers=1 \(.*\)", lines[2])
    assert lines[3].startswith("not counted: 2 that cannot run here (")
    assert records() == before


def test_the_cost_of_like_cells_comes_from_their_records(fedspan):
    fedspan("run", *QUICK)
    ran = fedspan("plan", *QUICK, "seed=0,1,2")
    assert "(records for 1 kind of cells)" in ran.out
    assert ran.err == ""
    assert "workers: " not in fedspan("plan", *QUICK, "seed=1,2", "workers=3").out
    spread = fedspan("plan", *QUICK, "seed=1,2", "workers=4").out
    assert re.search(r"^each on 2 workers: \S+ s at least \(the largest client is [5-9]\d% of a round\)$", spread, re.M)


def test_a_plan_says_which_cells_will_be_skipped_and_why(fedspan):
    ran = fedspan("plan", *QUICK, *ONE, "algorithm=fedavg,fedbabu", "addons=[babu]")
    assert ran.status == 0
    assert re.search(r"^will be skipped: 1 \(.*babu.*\)$", ran.out, re.M)


def test_a_plan_of_what_is_done_has_no_cost(fedspan):
    fedspan("run", *QUICK)
    assert fedspan("plan", *QUICK).out == "1 cell: 1 done, 0 missing\n"


def test_a_plan_of_a_command_with_options_of_its_launcher_is_that_without(fedspan):
    fedspan("run", *QUICK)
    ran = fedspan("plan", *QUICK, "launcher=submitit", "hydra.launcher.partition=gpu")
    assert (ran.status, ran.out) == (0, "1 cell: 1 done, 0 missing\n")


# new ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """What git would clone."""
    copy = tmp_path_factory.mktemp("clone")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        if (ROOT / name).is_file() and name.endswith((".py", ".toml", ".yaml")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    return copy


TEST_AND_RUN = """
import json, sys, pytest
from fedspan.benchmark.cli.main import main
tests, words = map(json.loads, sys.argv[1:])
sys.exit(pytest.main(tests) or main(words))
"""


@pytest.mark.slow
def test_a_new_plugin_of_each_kind_is_listed_runs_and_passes_its_own_and_the_contract_tests(
    fedspan, checkout, monkeypatch
):
    monkeypatch.chdir(checkout)
    made = {kind: f"made_{kind}" for kind in ("algorithm", "addon", "dataset")}
    own = []
    for kind, name in made.items():
        ran = fedspan("new", kind, name)
        assert ran.status == 0
        plugin, test = (Path(line.split()[0]) for line in ran.out.splitlines())
        assert plugin.is_file()
        assert test.is_file()
        own.append(str(test))
        if shutil.which("ruff"):
            subprocess.run(["ruff", "check", plugin, test], cwd=checkout, check=True)
    environment = os.environ | {"PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": ""}
    tests = ["tests/contract", *own, "-k", "made_", "-m", "", "-p", "no:cacheprovider"]
    words = ["dataset=made_dataset", "algorithm=made_algorithm", "addons=[made_addon]", "addon.made_addon.weight=0.1"]
    quick = [word for word in QUICK if not word.startswith("dataset")]
    command = [sys.executable, "-c", TEST_AND_RUN, json.dumps(tests), json.dumps(["run", *quick, *words])]
    ran = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    assert all(f"test_{name}.py" in "".join(own) for name in made.values())
    assert "made_algorithm + made_addon(weight=0.1) on made_dataset/iid" in ran.stdout
