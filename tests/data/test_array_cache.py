"""An entry of the cache is whole or absent, made once, and shared."""

import errno
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fedspan.benchmark.data.array_cache import AFRESH, MANIFEST, cached
from fedspan.benchmark.errors import UserError
from tests.helpers import PATIENCE, wait_for

X = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
Y = np.array([1, 0])


class Maker:
    """Builds `X` and `Y`, and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return {"x": X, "y": Y}, {"classes": ["a", "b"], "mean": [0.1]}


@pytest.fixture
def make():
    return Maker()


def entry(cache: Path) -> Path:
    return cache / "decoded" / "key"


def contents(cache: Path) -> set[str]:
    return {path.name for path in (cache / "decoded").iterdir()}


@settings(max_examples=25, deadline=None)
@given(array=st.sampled_from(["u1", "i8", "i4"]).flatmap(lambda dtype: arrays(dtype, array_shapes(min_side=0))))
def test_arrays_come_back_as_they_were(tmp_path_factory, array):
    cache = tmp_path_factory.mktemp("cache")
    for _ in range(2):
        found = cached(cache, "key", lambda: ({"some": array}, {})).arrays["some"]
        assert found.dtype == array.dtype
        assert np.array_equal(found, array)


def test_the_second_start_makes_nothing(tmp_path, make):
    first, second = (cached(tmp_path, "key", make) for _ in range(2))
    assert make.calls == 1
    assert np.array_equal(second.arrays["x"], X)
    assert second.facts == {"classes": ["a", "b"], "mean": [0.1]}
    assert first.digest == second.digest


def test_the_digest_follows_the_arrays_and_not_the_key(tmp_path, make):
    def other():
        return {"x": X + 1, "y": Y}, {}

    first, same, different = cached(tmp_path, "a", make), cached(tmp_path, "b", make), cached(tmp_path, "c", other)
    assert first.digest == same.digest != different.digest


def test_processes_share_the_pages_and_none_can_change_the_file(tmp_path, make):
    first, second = (cached(tmp_path, "key", make).arrays["x"] for _ in range(2))
    assert isinstance(first, np.memmap)
    if Path("/proc/self/maps").exists():
        assert Path("/proc/self/maps").read_text().count(str(entry(tmp_path) / "x.npy")) == 2
    first[:] = 0
    assert np.array_equal(second, X)
    assert np.array_equal(cached(tmp_path, "key", make).arrays["x"], X)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))


DAMAGE = {
    "array cut short": lambda place: cut(place / "x.npy"),
    "array empty": lambda place: os.truncate(place / "y.npy", 0),
    "array gone": lambda place: (place / "x.npy").unlink(),
    "one byte changed": lambda place: flip(place / "x.npy"),
    "arrays of another entry": lambda place: np.save(place / "x.npy", X.reshape(-1).view("u2").reshape(2, 4, 6)),
    "manifest cut short": lambda place: cut(place / MANIFEST),
    "manifest gone": lambda place: (place / MANIFEST).unlink(),
    "manifest of nothing": lambda place: (place / MANIFEST).write_text("[]"),
    "manifest of another format": lambda place: (place / MANIFEST).write_text('{"format": 0}'),
    "manifest is no text": lambda place: (place / MANIFEST).write_bytes(b"\xff\x00"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_entry_is_noticed_and_made_again(tmp_path, make, caplog, damage):
    cached(tmp_path, "key", make)
    damage(entry(tmp_path))
    found = cached(tmp_path, "key", make)
    assert make.calls == 2
    assert np.array_equal(found.arrays["x"], X)
    assert "damaged" in caplog.text
    caplog.clear()
    cached(tmp_path, "key", make)
    assert make.calls == 2
    assert not caplog.text
    assert contents(tmp_path) == {"key", "key.lock"}


def test_a_change_that_keeps_size_and_time_is_noticed_by_who_reads_afresh(tmp_path, make, monkeypatch, caplog):
    """`fedspan verify` does: otherwise it would repeat a record on the same wrong images."""
    cached(tmp_path, "key", make)
    path = entry(tmp_path) / "x.npy"
    before = path.stat()
    flip(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not np.array_equal(cached(tmp_path, "key", make).arrays["x"], X)
    monkeypatch.setenv(AFRESH, "1")
    assert np.array_equal(cached(tmp_path, "key", make).arrays["x"], X)
    assert make.calls == 2
    assert "damaged" in caplog.text


def test_an_entry_survives_being_copied_to_another_place(tmp_path, make):
    cached(tmp_path / "here", "key", make)
    shutil.copytree(entry(tmp_path / "here"), entry(tmp_path / "there"), copy_function=shutil.copyfile)
    found = cached(tmp_path / "there", "key", make)
    assert make.calls == 1
    assert np.array_equal(found.arrays["x"], X)
    manifest = json.loads((entry(tmp_path / "there") / MANIFEST).read_text())
    assert (entry(tmp_path / "there") / "x.npy").stat().st_mtime_ns == manifest["arrays"]["x"]["mtime_ns"]


def test_a_whole_entry_opens_without_a_lock_so_that_the_cache_may_be_read_only(tmp_path, make, monkeypatch):
    cached(tmp_path, "key", make)

    def refuse(*_):
        raise OSError("read-only file system")

    monkeypatch.setattr("fedspan.benchmark.data.array_cache.FileLock", refuse)
    (tmp_path / "decoded" / "key.lock").unlink()
    cached(tmp_path, "key", make)
    assert make.calls == 1
    assert contents(tmp_path) == {"key"}


def test_nothing_is_kept_of_a_maker_that_fails(tmp_path, make):
    def fail():
        raise UserError("no images")

    with pytest.raises(UserError, match="no images"):
        cached(tmp_path, "key", fail)
    assert contents(tmp_path) == {"key.lock"}
    cached(tmp_path, "key", make)
    assert make.calls == 1


@pytest.mark.parametrize("key", ["", "../x", "a.b", "A"])
def test_a_key_cannot_leave_the_cache(tmp_path, make, key):
    with pytest.raises(ValueError, match="cache key"):
        cached(tmp_path, key, make)


def test_a_cache_that_cannot_be_a_folder_is_one_line(tmp_path, make):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*file.*; .*paths\.data") as error:
        cached(tmp_path / "file", "key", make)
    assert "\n" not in str(error.value)
    assert make.calls == 0


# Several processes --------------------------------------------------------------------------------

PROGRAM = """
import os, sys, time
from pathlib import Path
import numpy as np
from fedspan.benchmark.data.array_cache import cached
here = Path(sys.argv[1])

def build():
    with open(here / "builds", "a") as file:
        file.write("x")
    {during}
    return {{"x": np.zeros((1000, 1000), np.uint8)}}, {{}}

{before}
print(cached(here / "cache", "key", build).arrays["x"].shape)
"""


def start(here: Path, before: str = "", during: str = "") -> subprocess.Popen:
    program = PROGRAM.format(before=before, during=during)
    return subprocess.Popen(
        [sys.executable, "-c", program, str(here)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_two_processes_that_start_together_make_it_once(tmp_path):
    together = """
open(here / f"ready{os.getpid()}", "w")
while len(list(here.glob("ready*"))) < 2:
    time.sleep(0.001)
"""
    started = [start(tmp_path, together, "time.sleep(0.3)") for _ in range(2)]
    assert [process.communicate(timeout=PATIENCE)[0].strip() for process in started] == ["(1000, 1000)"] * 2
    assert (tmp_path / "builds").read_text() == "x"


HALF_WRITTEN = """
def save(file, array, **_):
    file.write(b"half")
    file.flush()
    open(here / "now", "w")
    time.sleep(60)

np.save = save
"""


@pytest.mark.parametrize(
    ("before", "during"),
    [("", 'open(here / "now", "w"); time.sleep(60)'), (HALF_WRITTEN, "")],
    ids=["while it decodes", "while it writes"],
)
def test_a_maker_that_is_killed_leaves_nothing_behind(tmp_path, make, before, during):
    process = start(tmp_path, before, during)
    wait_for((tmp_path / "now").exists)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    assert contents(tmp_path / "cache") > {"key.lock"}
    found = cached(tmp_path / "cache", "key", make)
    assert np.array_equal(found.arrays["x"], X)
    assert contents(tmp_path / "cache") == {"key", "key.lock"}


def test_a_waiting_process_takes_over_from_one_that_is_killed(tmp_path):
    first = start(tmp_path, during='open(here / "now", "w"); time.sleep(60)')
    wait_for((tmp_path / "now").exists)
    second = start(tmp_path, before='open(here / "second", "w")')
    wait_for((tmp_path / "second").exists)
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=PATIENCE)
    assert second.communicate(timeout=PATIENCE)[0].strip() == "(1000, 1000)"


def test_a_full_disk_is_one_line_and_leaves_nothing_behind(tmp_path):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))"
    _, errors = start(tmp_path, before=limit).communicate(timeout=PATIENCE)
    assert "fedspan.benchmark.errors.UserError: cannot write decoded arrays to" in errors.splitlines()[-1]
    assert contents(tmp_path / "cache") == {"key.lock"}


def test_a_read_only_cache_is_one_line(tmp_path, make, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UserError, match=r"cannot write .*: Read-only file system; .*FEDSPAN_DATA"):
        cached(tmp_path, "key", make)
    assert make.calls == 0


def test_waiting_is_said(tmp_path, make, caplog):
    caplog.set_level(logging.INFO, "fedspan")
    (tmp_path / "decoded").mkdir()
    with ThreadPoolExecutor() as pool:
        with FileLock(tmp_path / "decoded" / "key.lock"):
            waiting = pool.submit(cached, tmp_path, "key", make)
            wait_for(lambda: "waiting for another process that makes key" in caplog.text)
            assert make.calls == 0
        assert waiting.result().arrays["x"].shape == X.shape
