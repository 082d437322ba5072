"""The commands of the README and of docs/ that make records for one another, or read them, run one after the other.

A file of their own: nox gives each file of this folder to one worker, so these run beside all other commands.
"""

import pytest

from tests.docs.commands import check_runs, commands, of_records


@pytest.mark.docs
@pytest.mark.parametrize("command", [one for one in commands() if of_records(one.values[0])])
def test_command_runs(command, checkout, tmp_path):
    check_runs(command, checkout, tmp_path)
