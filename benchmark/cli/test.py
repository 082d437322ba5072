"""`fedspan test`: the contract tests of one plugin, from any file or distribution."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from typing import Any

import torch

from fedspan.benchmark.cli.accepted import accepted
from fedspan.benchmark.errors import UserError, did_you_mean
from fedspan.benchmark.names import counted_as
from fedspan.benchmark.places import packaged
from fedspan.benchmark.registry import KINDS, plugins, why_unknown
from fedspan.benchmark.running.job import reason_of

OPTIONS = (
    "-q", "-rs", "--tb=no", "--noconftest", "-p", "no:warnings", "-p", "no:cacheprovider", "-c", os.devnull,
)  # fmt: skip
NONE_COLLECTED = 5  # pytest's exit status


class CasesOf:
    """Pytest plugin that keeps the cases of one name, and shows each failure once.

    The ID of a case is names joined by dashes.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.failures: dict[str, list[tuple[str, str]]] = {}  # (case, error) by common failure

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        """Deselect the cases of other names."""
        kept = [item for item in items if self.name in _parts(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept

    def pytest_runtest_setup(self, item: Any) -> None:
        """Reset threads and denormals before each case: a cell of an earlier case has set them for the process."""
        torch.set_num_threads(1)
        torch.set_flush_denormal(False)

    def pytest_exception_interact(self, node: Any, call: Any) -> None:
        """Note a failure."""
        error = call.excinfo.value
        said = str(error).split("\n")[0] if isinstance(error, AssertionError) else reason_of(error)
        same = node.originalname if said.startswith("assert ") else said  # values differ from case to case
        self.failures.setdefault(same, []).append((node.name, said))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Show each failure in one line, with its first case."""
        for cases in self.failures.values():
            first, said = cases[0]
            more = f" and {counted_as(len(cases) - 1, 'other case')}" if len(cases) > 1 else ""
            terminalreporter.write_line(f"FAILED {first}{more}: {said}")


def _parts(item: Any) -> list[str]:
    return item.callspec.id.split("-") if hasattr(item, "callspec") else []


def run(arguments: argparse.Namespace) -> int:
    """Run the contract tests of the named plugin; return 1 if one fails."""
    names = [word for word in arguments.words if "=" not in word]
    if len(names) != 1:
        raise UserError("write: fedspan test NAME [plugins=FILE.py]")
    settings = [word for word in arguments.words if "=" in word]
    accepted(settings, ("plugins",), "the contract tests choose the settings of their cells")
    check_known(names[0])
    if importlib.util.find_spec("pytest") is None:
        raise UserError("fedspan test needs pytest, which is not installed; run: pip install pytest")
    import pytest

    folder = packaged("tests", "contract")
    sys.dont_write_bytecode = True  # an installation may be read-only
    options = [*OPTIONS, "--rootdir", str(folder), str(folder)]
    status = int(pytest.main(options, plugins=[CasesOf(names[0])]))
    if status == NONE_COLLECTED:
        raise UserError(f"there is no contract test of '{names[0]}'")
    return int(status != 0)


def check_known(name: str) -> None:
    """Raise `UserError` unless a plugin of some kind has the name."""
    known = {other for kind in KINDS for other in plugins(kind)}
    if name in known:
        return
    if why := why_unknown(name, KINDS):
        raise UserError(f"unknown plugin '{name}' ({why})")
    raise UserError(f"unknown plugin '{name}'{did_you_mean(name, known)} (in a file? add plugins=FILE.py)")
