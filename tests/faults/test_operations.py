"""Every operation on a file of a run fails once: no traceback, no record lost, and no litter after the next start."""

import builtins
import errno
import io
import os
import pathlib
import random
from pathlib import Path

import pytest

from fedspan.benchmark.cli.main import main
from tests.cli.conftest import QUICK, records
from tests.faults.conftest import finish, leftovers

RUN = ("run", *QUICK, "checkpoint_seconds=0")
ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS)
OPERATIONS = {
    "open": [(builtins, "open"), (io, "open"), (os, "open")],
    "write": [(pathlib.Path, "write_bytes"), (pathlib.Path, "write_text")],
    "fsync": [(os, "fsync")],
    "replace": [(os, "replace"), (pathlib.Path, "replace")],
    "unlink": [(os, "unlink"), (pathlib.Path, "unlink")],
    "mkdir": [(os, "mkdir")],
}


class Disk:
    """Counts operations of one kind on the results folder; the one with the number `fails` raises."""

    def __init__(self, patch, operation, fails=0, code=0):
        self.seen, self.fails, self.code = 0, fails, code
        for owner, name in OPERATIONS[operation]:
            patch.setattr(owner, name, self.wrapped(getattr(owner, name), operation))

    def wrapped(self, function, operation):
        def call(*arguments, **options):
            place = arguments[0] if arguments else ""
            known = operation == "fsync" or (isinstance(place, (str, os.PathLike)) and "results" in os.fspath(place))
            if known:
                self.seen += 1
                if self.seen == self.fails:
                    raise OSError(self.code, os.strerror(self.code), None if operation == "fsync" else str(place))
            return function(*arguments, **options)

        return call


def clear(here):
    for path in sorted(here.glob("results/**/*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.fixture
def operations(here, monkeypatch):
    """Return how many operations of each kind a run has, and the records of an undisturbed one."""
    counts = {}
    for operation in OPERATIONS:
        with monkeypatch.context() as patch:
            disk = Disk(patch, operation)
            assert main(list(RUN)) == 0
        counts[operation], undisturbed = disk.seen, records()
        clear(here)
    return counts, undisturbed


@pytest.fixture
def survives(operations, here, monkeypatch, fork):
    """Return a function that runs the cell while one operation fails, in a process of its own, and then again."""
    _, undisturbed = operations

    def check(operation, number, code):
        told = f"{operation} {number} with {errno.errorcode[code]}"
        with monkeypatch.context() as patch:
            Disk(patch, operation, number, code)
            process = fork(*RUN)
        status = finish(process)
        assert status in (0, 1, 2), told
        assert "Traceback" not in (here / "output").read_text(), told
        assert records().items() <= undisturbed.items(), told
        if status == 0:
            assert records() == undisturbed, told
        assert main(list(RUN)) == 0, told
        assert records() == undisturbed, told
        assert leftovers() == set(), told
        clear(here)

    return check


def test_a_sample_of_failing_operations(operations, survives):
    draw = random.Random(0)
    for operation, count in operations[0].items():
        assert count > 0, operation
        survives(operation, draw.randint(1, count), draw.choice(ERRORS))


def test_the_next_start_removes_what_a_failing_disk_left_of_a_finished_cell(operations):
    assert main(list(RUN)) == 0
    [key] = records()
    for left in (
        f"checkpoints/{key}.safetensors",
        f"status/{key}.7.tmp",
        f"leases/{key}.1.json",
        f"records/.{key}.x.tmp",
    ):
        Path("results", left).parent.mkdir(exist_ok=True)
        Path("results", left).write_text("{}")
    assert main(list(RUN)) == 0
    assert leftovers() == set()


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_may_fail(operations, survives, operation, capsys):
    count = operations[0][operation]
    for number in range(1, count + 1):
        for code in ERRORS:
            survives(operation, number, code)
    with capsys.disabled():
        print(f"\noperations failed: {operation} {count} x {len(ERRORS)}")
