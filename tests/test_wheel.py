"""A wheel has all that the checkout has: plugins, boards, protocols, templates and the printed numbers."""

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.helpers import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
QUICK = ("tracking=false", "dataset.limit=60", "clients=2", "protocol.rounds=1", "model.width=2")


def build(folder, source=ROOT):
    command = [sys.executable, "-m", "uv", "build", "--offline", "--no-build-isolation", "--out-dir", str(folder)]
    subprocess.run([*command, str(source)], check=True, capture_output=True, text=True)
    return folder


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """A folder with a source distribution, and the wheel that was built from it."""
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(dist):
    [path] = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    """A folder with the wheel installed in it, which no checkout hides."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-deps", "--target", str(folder)]
    subprocess.run([*command, "--python", sys.executable, str(wheel)], check=True, capture_output=True, text=True)
    return folder


def python(site, *words, cwd):
    environment = os.environ | {"PYTHONPATH": str(site), "FEDSPAN_DATA": str(cwd / "data"), "COLUMNS": "200"}
    command = [sys.executable, "-P", *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=PATIENCE)


def tracked(*folders):
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    return {line for line in listed.stdout.splitlines() if (ROOT / line).is_file()}


def test_it_holds_every_source_board_template_and_printed_number_and_nothing_that_a_run_made(wheel):
    if not (ROOT / ".git").exists():
        pytest.skip("what belongs to it is what git tracks")
    packaged = ("benchmark", "methods", "tasks", "leaderboards", "results/paper")
    packaged += ("tests/contract", "tests/helpers.py", "tests/toys.py", "tests/__init__.py")  # what `fedspan test` runs
    expected = {f"fedspan/{name}" for name in tracked(*packaged)} | tracked("fedspan")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == expected


def test_what_fedspan_test_runs_needs_pytest_and_nothing_else_that_only_tests_need():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = {re.match(r"[\w-]+", one)[0].replace("-", "_") for one in project["optional-dependencies"]["test"]}
    assert "hypothesis" in extra
    for path in [ROOT / "tests/helpers.py", ROOT / "tests/toys.py", *(ROOT / "tests/contract").glob("*.py")]:
        nodes = list(ast.walk(ast.parse(path.read_text())))
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
        assert {name.partition(".")[0] for name in names} & extra <= {"pytest"}, path


def test_it_brings_one_import_name(wheel):
    held = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in held if ".dist-info/" not in name} == {"fedspan"}


RUN_AND_REPORT = """
import sys
sys.path.insert(0, "")  # as a notebook has it
import fedspan
from fedspan.benchmark.cli.main import main
print(fedspan.__file__)
sys.exit(main(["run", *sys.argv[1:]]) or main(["report", "board=spherefed_main"]))
"""


def test_it_runs_a_cell_and_reports_a_board_with_printed_numbers_beside_folders_of_the_same_names(site, tmp_path):
    """`nox -s wheel` runs a whole board, and writes and tests a method."""
    for name in ("tasks", "methods", "benchmark"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('not ours')")
    ran = python(site, "-c", RUN_AND_REPORT, *QUICK, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(str(site))
    assert len([*(tmp_path / "results" / "records").glob("*.json")]) == 1
    assert "69.19" in ran.stdout
    assert (tmp_path / "leaderboards" / "pages" / "index.html").is_file()
