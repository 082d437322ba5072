"""Plugins from files that the user names: in every process, in every command that composes a cell."""

import re

import pytest
import torch

from fedspan.benchmark import registry
from fedspan.benchmark.cli.test import CasesOf
from tests.cli.conftest import QUICK, finish, records

MINE = '''
from fedspan.benchmark.component import Component, algorithm
from fedspan.benchmark.tree import scale


@algorithm("mine")
class Mine(Component):
    """Me 2026."""

    k: float = 0.5
    neutral = {"k": 1.0}

    def server(self, delta, agg):
        return scale(delta, self.k), {}
'''


RAISES = '''
from fedspan.benchmark.task import Partition, partition


@partition("mine")
class Mine(Partition):
    """Me 2026."""

    def split(self, labels, classes, clients, rng): return {}["x"]
'''


@pytest.fixture
def mine(here, monkeypatch):
    """A file with a method in the working folder; what is imported here is forgotten."""
    registry.discover()
    monkeypatch.setattr(registry, "_plugins", {kind: dict(known) for kind, known in registry._plugins.items()})
    monkeypatch.setattr(registry, "_files", {})
    monkeypatch.setattr(registry, "_broken", [])
    path = here / "my.py"
    path.write_text(MINE)
    return path


@pytest.mark.usefixtures("mine")
def test_commands_know_the_plugins_of_a_file(fedspan):
    assert fedspan("run", *QUICK, "algorithm=mine", "algorithm.k=1.0", "plugins=my.py").status == 0
    assert {one["spec"]["algorithm"]["name"] for one in records().values()} == {"mine"}
    assert "Me 2026." in fedspan("list", "algorithms", "mine", "plugins=[my.py]").out
    assert fedspan("plan", *QUICK, "algorithm=mine", "algorithm.k=1.0", "plugins=my.py").out.startswith(
        "1 cell: 1 done"
    )


DATASET = '''

from fedspan.benchmark.registry import how
from fedspan.benchmark.task import Dataset, dataset


@dataset("pictures")
class Pictures(Dataset):
    """Me 2026."""

    folder: str = how("")

    def load(self, root): raise NotImplementedError
'''


@pytest.mark.parametrize(
    ("words", "said"), [(["verify", "0123"], "holds no record"), (["retry", "--failed"], "there is no folder")]
)
@pytest.mark.usefixtures("mine")
def test_commands_know_the_places_of_a_file(fedspan, here, words, said):
    (here / "my.py").write_text(MINE + DATASET)
    told = fedspan(*words, "plugins=my.py", "dataset.folder=/x")
    assert said in told.out + told.err


BOARD = """
grid: [{algorithm: [fedavg, mine]}]
scales: {smoke: {protocol.rounds: 1, tuned: [{when: {algorithm: mine}, set: {protocol.lr: 0.05}}]}}
"""


@pytest.mark.usefixtures("mine")
def test_the_rules_of_a_board_by_path_know_the_plugins_of_a_file(fedspan, here):
    (here / "ours.yaml").write_text(BOARD)
    assert fedspan("plan", "board=ours.yaml", "scale=smoke", "plugins=my.py").out.startswith("2 cells")


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("command", ["plan", "run -m", "report"])
def test_a_board_that_names_its_plugins_takes_their_settings(fedspan, here, command):
    (here / "ours.yaml").write_text(
        "base: {plugins: my.py, algorithm: mine, partition: iid, protocol.rounds: 1}\ngrid: [{}]"
    )
    words = ["tracking=false", "workers=1"] if command == "run -m" else []
    ran = fedspan(*command.split(), "board=ours.yaml", "algorithm.k=0.25", *words)
    assert "unknown" not in ran.err
    if command == "run -m":
        assert [one["spec"]["algorithm"]["k"] for one in records().values()] == [0.25]


@pytest.mark.usefixtures("mine")
def test_the_commands_of_a_page_name_the_files_of_its_plugins(fedspan, here):
    (here / "ours.yaml").write_text(
        "grid: [{algorithm: mine}]\nbase: {dataset: digits, partition: iid, protocol.rounds: 1}"
    )
    assert fedspan("run", "-m", "board=ours.yaml", "plugins=my.py", "tracking=false", "workers=1").status == 0
    assert fedspan("report", "board=ours.yaml", "plugins=my.py").status == 0
    pages = here / "leaderboards" / "pages"
    [runs] = (pages / "runs").glob("*.html")
    commands = [
        command
        for page in (pages / "ours" / "index.html", runs)
        for command in re.findall('<code class="command">([^<]+)', page.read_text())
    ]
    assert [command.split()[1] for command in commands] == ["verify", "run", "run", "verify"]
    assert all(command.endswith(" plugins=my.py") for command in commands)


@pytest.mark.parametrize("command", ["plan", "run", "show partition"])
def test_a_plugin_that_raises_is_one_line_in_every_command(fedspan, mine, command):
    mine.write_text(RAISES)
    run = fedspan(*command.split(), "dataset=digits", "partition=mine", "plugins=my.py")
    assert run.status
    assert "partition 'mine', split (" in run.err
    assert "my.py, line 9): KeyError: 'x'" in run.err
    assert "Traceback" not in run.err


def test_a_plugin_of_a_file_is_cited_alone_and_with_its_board(fedspan, mine, here):
    mine.write_text(MINE.replace("    k: float", '    papers = ("arXiv:2106.10874",)\n    k: float'))
    (here / "ours.yaml").write_text(BOARD)
    for asked in ("mine", "board=ours.yaml"):
        assert "arxiv.org/abs/2106.10874" in fedspan("cite", asked, "plugins=my.py").out


def test_a_paper_that_is_an_address_alone_is_named_once(fedspan, mine):
    mine.write_text(MINE.replace("    k: float", '    papers = ("arXiv:2106.10874",)\n    k: float'))
    shown = fedspan("list", "algorithms", "mine", "plugins=[my.py]").out
    assert shown.count("arXiv:2106.10874") == 1
    assert "https://arxiv.org/abs/2106.10874" in shown


@pytest.mark.usefixtures("mine")
def test_plugins_are_how_and_change_no_key(fedspan):
    fedspan("run", *QUICK, "plugins=my.py")
    before = records()
    assert "already has a record" in fedspan("run", *QUICK).out
    assert records() == before


@pytest.mark.slow
def test_a_broken_promise_fails_the_contract_tests(start, mine):
    mine.write_text(MINE.replace("return scale", "delta['head.bias'].add_(1)\n        return scale"))
    ran = finish(start("test", "mine", "plugins=my.py"))
    assert ran.status == 1
    assert "algorithm 'mine', server (" in ran.out
    assert "changes an input in place" in ran.out


def test_the_contract_tests_show_a_failure_once_and_in_one_line(start, mine):
    mine.write_text(MINE + "    papers = ('li1999',)\n\n    def loss(self, step): return step.logits.detach().mean()\n")
    ran = finish(start("test", "mine", "plugins=my.py"))
    assert ran.status == 1
    told = [line for line in ran.out.splitlines() if "algorithm 'mine', loss (" in line]
    assert len(told) == 1
    assert re.match(r"FAILED test_\S+ and \d+ other cases: algorithm 'mine', loss \(.*must return a loss with", told[0])
    assert "FAILED test_the_papers_can_be_cited[algorithm-mine]: algorithm 'mine' cites 'li1999'" in ran.out
    assert "known:" not in ran.out
    assert len(ran.out.splitlines()) < 40


@pytest.mark.usefixtures("mine")
def test_a_broken_file_of_a_folder_is_reported_and_only_what_asks_for_it_fails(fedspan, here):
    (here / "half.py").write_text("1 / 0")
    ran = fedspan("run", *QUICK, "algorithm=mine", "algorithm.k=1.0", "plugins=.")
    assert ran.status == 0
    assert "half.py cannot be imported: ZeroDivisionError" in ran.complaint
    refused = fedspan("list", "methods", "half", "plugins=.")
    assert refused.status == 2
    assert refused.complaint.startswith("fedspan: cannot list the method 'half' (")
    assert "ZeroDivisionError" in refused.complaint


def test_a_class_without_decorator_is_explained_by_every_command_that_names_it(fedspan, mine):
    mine.write_text(MINE.replace('@algorithm("mine")', ""))
    for words in (["list", "methods"], ["test"]):
        assert (
            'has no decorator; write @algorithm("mine") above it' in fedspan(*words, "mine", "plugins=my.py").complaint
        )


def test_a_plugin_is_told_in_full_once_and_what_it_discloses(fedspan, mine):
    single = "    def aggregate(self, updates, agg): return next(iter(updates.values()))\n"
    mine.write_text(MINE.replace("Me 2026.", "Me 2026: one client alone.") + single)
    told = fedspan("list", "methods", "mine", "plugins=my.py").out
    assert told.count("Me 2026: one client alone.") == 1
    assert "The server sees single clients' updates, not sums alone." in told


def test_what_the_contract_tests_skip_says_why(start, mine):
    refusal = "    def check(self, setting):\n        raise Incompatible('no task is good enough')\n"
    mine.write_text("from fedspan.benchmark.errors import Incompatible\n" + MINE + refusal)
    ran = finish(start("test", "mine", "plugins=my.py"))
    assert ran.status == 0
    assert "no task is good enough" in ran.out
    assert "warning" not in ran.out, "of which nothing is shown"


def test_each_contract_test_begins_with_the_same_arithmetic(monkeypatch):
    settings = {}
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: settings.update(threads=threads))
    torch.set_flush_denormal(True)
    CasesOf("mine").pytest_runtest_setup(None)
    assert settings == {"threads": 1}
    assert torch.tensor(1e-40) * 1 > 0
