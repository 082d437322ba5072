"""Every shell command of the README and of docs/ exists and runs; those of records lie in test_records.py."""

import re
import shlex
import subprocess
import sys

import pytest

from tests.docs.commands import PAGES, ROOT, check_runs, commands, of_records


@pytest.mark.docs
@pytest.mark.parametrize("command", [one for one in commands() if not of_records(one.values[0])])
def test_command_runs(command, checkout, tmp_path):
    check_runs(command, checkout, tmp_path)


def nox_sessions():
    command = [sys.executable, "-m", "nox", "--list-sessions"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^[*-] ([\w-]+)", listed, re.MULTILINE))


def test_every_session_that_the_pages_name_exists():
    named = {name for page in PAGES for name in re.findall(r"nox -s ([\w-]+)", page.read_text())}
    assert {"bench", "tests", "report", "ui", "perf", "lint", "types", "docs-check"} <= named | {"slow"}
    assert named <= nox_sessions()


def test_ci_runs_the_test_command_of_the_readme():
    [command] = [line for line in (ROOT / "README.md").read_text().splitlines() if line.endswith("nox -s tests")]
    assert command in (ROOT / ".ci" / "run").read_text().splitlines()


def test_commands_parse():
    assert [shlex.split(parameter.values[0]) for parameter in commands()]


def test_the_method_that_the_readme_shows_is_the_file():
    text = (ROOT / "README.md").read_text()
    [(path, shown)] = re.findall(r"a whole file,\s`([\w/.]+)`:\n\n```python\n(.*?)```", text, re.DOTALL)
    assert shown == (ROOT / path).read_text()
