"""Full, read-only and failing disks, and power that goes off: one line, nothing lost, and the same records later."""

import contextlib
import errno
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from fedspan.benchmark.cli.main import main
from fedspan.benchmark.records import atomic as files
from tests.faults.conftest import GRID, check_files, finish, leftovers, plain
from tests.helpers import PATIENCE

CELLS = ("seed=0,1",)


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    return tmp_path_factory.mktemp("made") / "undisturbed"


@pytest.fixture
def undisturbed(fork, made_once):
    """What the grid leaves where nothing goes wrong; the folder `undisturbed` holds it."""
    if not made_once.exists():
        assert finish(fork(*GRID, *CELLS, "paths.results=once")) == 0
        shutil.copytree("once", made_once)
    shutil.copytree(made_once, "undisturbed")
    return plain("undisturbed")


# the power goes off ---------------------------------------------------------------------------------


class Disk:
    """Knows what was synced. When the power goes off the rest is cut short, as file systems do."""

    def __init__(self, monkeypatch, steps):
        self.steps = steps
        self.synced = {found.st_ino: found.st_size for found in map(Path.stat, Path("results").rglob("*"))}
        self.fsync, self.replace = os.fsync, os.replace
        monkeypatch.setattr(files.os, "fsync", self.on_sync)
        monkeypatch.setattr(files.os, "replace", self.on_replace)

    def step(self):
        self.steps -= 1
        if self.steps == 0:
            self.off()

    def on_sync(self, handle):
        self.step()
        self.fsync(handle)
        self.synced[os.fstat(handle).st_ino] = os.fstat(handle).st_size

    def on_replace(self, old, new):
        self.replace(old, new)
        self.step()

    def off(self):
        for path in Path("results").rglob("*"):
            if path.is_file():
                found = path.stat()
                if self.synced.get(found.st_ino) != found.st_size:
                    os.truncate(path, found.st_size // 2)
        os._exit(77)


@pytest.mark.slow
def test_whenever_the_power_goes_off_nothing_is_lost_that_was_there(fork, undisturbed, monkeypatch):
    draws, offs = random.Random(0), 0
    for _ in range(2):
        finished = False
        while not finished:
            with monkeypatch.context() as patch:
                Disk(patch, draws.randint(1, 25))
                process = fork(*GRID, *CELLS)
            process.join(PATIENCE)
            finished = process.exitcode == 0
            offs += process.exitcode == 77
            check_files()
            assert plain().items() <= undisturbed.items()
        assert plain() == undisturbed
        assert leftovers() == set()
        for path in Path("results/records").glob("*"):
            path.unlink()
    assert offs > 1


def test_a_write_that_was_not_synced_would_be_noticed(fork, undisturbed, monkeypatch):
    """The simulated loss of power is one that unsynced records do not survive."""

    def off_with_the_first_record(disk, old, new):
        disk.replace(old, new)
        if Path(new).parent.name == "records":
            disk.off()

    monkeypatch.setattr(Disk, "on_sync", lambda disk, handle: None)
    monkeypatch.setattr(Disk, "on_replace", off_with_the_first_record)
    Disk(monkeypatch, 0)
    assert finish(fork(*GRID, *CELLS)) == 77
    with pytest.raises(AssertionError):
        check_files()


# no space -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(kilobytes, folder):
    """Mount a small file system, where this process may."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", folder]
    if os.name != "posix" or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system is not permitted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_is_one_line_and_the_grid_goes_on_when_there_is_space(fork, undisturbed, here):
    with small_disk(400, here / "results"):
        filler = here / "results" / "filler"
        filler.write_bytes(bytes(335_000))
        assert finish(fork(*GRID, *CELLS)) in (1, 2)  # a failure of that cell, or not even that can be written
        assert plain().items() <= undisturbed.items()
        assert "No space left on device; free space, or choose another folder" in Path("output").read_text()
        assert "Traceback" not in Path("output").read_text()
        check_files()
        filler.unlink()
        assert finish(fork(*GRID, *CELLS)) == 0
        assert plain() == undisturbed


@pytest.mark.parametrize("number", [1, 4, 6, 7])
def test_wherever_space_runs_out_what_is_there_stays_and_the_rest_comes_later(fork, undisturbed, monkeypatch, number):
    """The n-th write and all after it fail."""
    left = [number]
    fsync = os.fsync

    def full(handle):
        left[0] -= 1
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full)
        process = fork(*GRID, *CELLS)
    assert finish(process) == 2
    assert "No space left on device; free space, or choose another folder" in Path("output").read_text()
    assert not list(Path("results").rglob("*.tmp"))
    check_files()
    assert plain().items() <= undisturbed.items()
    assert finish(fork(*GRID, *CELLS)) == 0
    assert plain() == undisturbed
    assert leftovers() == set()


# no permission --------------------------------------------------------------------------------------


def test_a_read_only_folder_is_one_line_before_anything_runs(here, computed, capfd):
    with small_disk(2000, here / "results"):
        subprocess.run(["mount", "-o", "remount,ro", here / "results"], check=True)
        assert main([*GRID, *CELLS]) == 2
        assert "Read-only file system; free space, or choose another folder" in capfd.readouterr().err
        assert computed() == []


def test_finished_results_can_be_read_where_nothing_can_be_written(fork, undisturbed, here):
    with small_disk(2000, here / "results"):
        subprocess.run(["cp", "-r", here / "undisturbed" / "records", here / "results"], check=True)
        subprocess.run(["mount", "-o", "remount,ro", here / "results"], check=True)
        assert finish(fork(*GRID, *CELLS)) == 0
    assert "2 cells: 2 with a record, nothing to run" in Path("output").read_text()
