"""A method in a distribution of its own: installed beside FedSpan, found, run in a board, tested like the rest."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = ROOT / "examples" / "plugin"

METHOD = """
from fedspan.benchmark.component import Component, algorithm

@algorithm("{name}")
class Method(Component):
    "{source}"
"""
BROKEN = {
    "clash": METHOD.format(name="fedmom", source="Somebody else 2026."),
    "nameless": METHOD.format(name="nameless", source="No source."),
    "typo": "import no_such_module",
    "quits": "raise SystemExit('bye')",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the example installed in it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-deps", "--no-build-isolation"]
    command += ["--python", sys.executable, "--target", str(folder), str(PLUGIN)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return folder


def python(site, *words, cwd):
    environment = os.environ | {
        "PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "", "COLUMNS": "200",
        "FEDSPAN_DATA": str(cwd / "data"),
    }  # fmt: skip
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=PATIENCE)


TEST_AND_RUN = """
import json, sys, pytest
from fedspan.benchmark.cli.main import main
tests, words = map(json.loads, sys.argv[1:])
print(f"tests ended with {pytest.main(tests):d}, the run with {main(words):d}")
"""


@pytest.fixture(scope="module")
def used(site, tmp_path_factory):
    """The working folder and the words of a process that ran the contract tests of the example, then a board."""
    folder = tmp_path_factory.mktemp("used")
    tests = ["-p", "no:cacheprovider", "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")]
    tests += ["-k", "fedmom or finetune", str(ROOT / "tests" / "contract")]
    words = ["scale=smoke", "seed=0", "workers=1", "tracking=false", "dataset.limit=150", "model.width=2"]
    board = ["run", f"board={PLUGIN / 'board.yaml'}", *words]
    return folder, python(site, "-c", TEST_AND_RUN, json.dumps(tests), json.dumps(board), cwd=folder)


def test_it_runs_in_a_board_beside_other_methods(used):
    folder, ran = used
    assert "the run with 0" in ran.stdout
    assert ran.stderr == ""
    records = [json.loads(path.read_text()) for path in (folder / "results" / "records").glob("*.json")]
    assert {record["status"] for record in records} == {"done"}
    methods = {(record["spec"]["algorithm"]["name"], record["spec"]["algorithm"].get("beta")) for record in records}
    assert methods == {("fedavg", None), ("fedmom", 0.5), ("fedmom", 0.9)}
    tuned = [record["scores"] for record in records if record["spec"]["addons"]]
    assert [scores["personalised"]["client_accuracy"] > 0 for scores in tuned] == [True]
    assert {digest for r in records for name, digest in r["provenance"]["sources"].items() if "fedmom" in name}


def test_it_passes_the_contract_tests(used):
    _, ran = used
    assert "tests ended with 0" in ran.stdout, ran.stdout
    assert int(re.search(r"(\d+) passed", ran.stdout).group(1)) > 10


def test_broken_plugins_are_one_line_each_and_stop_nothing(site, tmp_path):
    others = tmp_path / "others"
    for name, source in BROKEN.items():
        info = others / f"{name}-1.dist-info"
        info.mkdir(parents=True)
        (others / f"{name}.py").write_text(source)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[fedspan.plugins]\n{name} = {name}\n")
    ran = python(f"{site}{os.pathsep}{others}", "-m", "fedspan", "list", "algorithms", cwd=tmp_path)
    assert ran.returncode == 0
    assert re.search(r"fedmom +Nesterov momentum on the server\. +arXiv:2002\.02090", ran.stdout)
    complaints = dict(re.findall(r"^fedspan: plugin '(\w+)' could not be loaded: (.*)$", ran.stderr, re.MULTILINE))
    assert len(ran.stderr.splitlines()) == len(complaints) == 4
    assert "algorithm 'fedmom' is registered twice: by " in complaints["clash"]
    assert "by FedMom (" in complaints["clash"]
    assert "fedspan_example_fedmom.py, line " in complaints["clash"]
    assert "ModuleNotFoundError: No module named 'no_such_module'" in complaints["typo"]
    assert "SystemExit: bye" in complaints["quits"]
    assert "needs a docstring that names its source with a year" in complaints["nameless"]
