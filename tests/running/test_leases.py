import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.running import leases as module
from fedspan.benchmark.running.leases import Busy, Leases, Owner
from tests.helpers import PATIENCE, wait_for

KEY = "0123456789abcdef0123"


@pytest.fixture
def leases(tmp_path):
    return Leases(tmp_path / "leases", beat=0.05)


class Clock:
    """A clock that stands still until it is told to go on, so that a busy machine changes no test's outcome."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """The clock that all leases of this process look at."""
    clock = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock, sleep=time.sleep))
    return clock


def write(leases, number=1, **changes):
    """Leave the lease of another process."""
    leases.folder.mkdir(exist_ok=True)
    path = leases.folder / f"{KEY}.{number}.json"
    path.write_text(json.dumps({**asdict(Owner.me()), **changes}))
    return path


def process(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


ELSEWHERE = {"machine": "another", "host": "far"}


def expire(leases, clock):
    """Look at a lease as a grid that waits for it does, once before it has expired and once after."""
    assert leases.owner(KEY) is not None
    clock.now += leases.expiry
    assert leases.owner(KEY) is not None
    clock.now += 0.1
    assert leases.owner(KEY) is None


def test_a_cell_has_one_owner_until_it_is_released(leases):
    lease = leases.claim(KEY)
    with pytest.raises(Busy, match=f"process {os.getpid()} on "):
        leases.claim(KEY)
    lease.release(finished=False)
    assert leases.owner(KEY) is None
    leases.claim(KEY).release(finished=True)
    assert list(leases.folder.iterdir()) == []


def test_leases_of_different_cells_do_not_meet(leases):
    mine, other = leases.claim(KEY), leases.claim(KEY[:-1] + "4")
    mine.release(finished=True)
    assert leases.owner(KEY[:-1] + "4") == Owner.me()
    other.release(finished=True)


def test_the_lease_of_a_process_that_died_here_is_free_at_once(leases):
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    write(leases, pid=child.pid, started=process(child.pid)[19])
    assert leases.owner(KEY).pid == child.pid
    child.send_signal(signal.SIGKILL)
    wait_for(lambda: process(child.pid)[0] == "Z")
    assert leases.owner(KEY) is None  # though it is a zombie still
    child.communicate()
    leases.claim(KEY).release(finished=False)


def test_a_later_process_with_the_same_number_is_another_one(leases):
    write(leases, started="1")
    assert leases.owner(KEY) is None


def test_a_process_elsewhere_has_its_lease_until_it_gives_no_sign_of_life(leases, clock):
    path = write(leases, **ELSEWHERE)
    for sign in range(1, 10):
        assert leases.owner(KEY).host == "far"
        os.utime(path, ns=(sign, sign))
        assert leases.owner(KEY).host == "far"
        clock.now += 0.9 * leases.expiry
    assert leases.owner(KEY).host == "far"
    os.utime(path)
    expire(leases, clock)
    assert leases.release_dead(KEY)
    Leases(leases.folder).claim(KEY).release(finished=True)  # by a worker, which has not waited


def test_clocks_of_other_machines_do_not_matter(leases):
    path = write(leases, **ELSEWHERE)
    for clock in (0, 2**33):
        os.utime(path, (clock, clock))
        assert leases.owner(KEY) is not None


def test_a_living_lease_cannot_be_buried(leases):
    lease = leases.claim(KEY)
    assert not leases.release_dead(KEY)
    lease.release(finished=True)


def test_an_owner_beats_for_as_long_as_it_lives(leases, clock):
    mine = leases.claim(KEY)
    for _ in range(3):
        assert leases.owner(KEY) == Owner.me()
        clock.now += 0.9 * leases.expiry
        touched = mine.path.stat().st_mtime_ns
        wait_for(lambda touched=touched: mine.path.stat().st_mtime_ns != touched)
        assert leases.owner(KEY) == Owner.me()
        mine.check()
    mine.release(finished=True)


def test_an_owner_that_slept_too_long_sees_that_it_has_lost(leases, clock):
    asleep = Leases(leases.folder, beat=3600).claim(KEY)
    expire(leases, clock)
    awake = leases.claim(KEY)
    assert not asleep.mine
    asleep.lost = True  # what its next beat would find
    with pytest.raises(Busy):
        asleep.check()
    asleep.release(finished=False)
    assert leases.owner(KEY) == Owner.me()
    assert awake.mine
    awake.release(finished=True)


def test_while_the_folder_cannot_be_read_nobody_knows_of_a_loss(leases, monkeypatch):
    lease = Leases(leases.folder, beat=3600).claim(KEY)

    def stale(key):
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as outage:
        outage.setattr(lease.leases, "_files", stale)
        lease.check(at_once=True)
        assert lease.most_other_cells() == 0
    leases.folder.rename(leases.folder.with_name("unmounted"))
    lease.check(at_once=True)
    leases.folder.with_name("unmounted").rename(leases.folder)
    write(leases, number=lease.number + 1, **ELSEWHERE)
    with pytest.raises(Busy):
        lease.check(at_once=True)
    lease.release(finished=False)


def test_a_beat_notices_a_lost_lease(leases):
    lease = leases.claim(KEY)
    write(leases, number=lease.number + 1)
    wait_for(lambda: lease.lost)
    lease.release(finished=False)


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"pid": 3}', "\x00" * 9])
def test_a_lease_that_was_cut_off_by_a_loss_of_power_is_free(leases, monkeypatch, content):
    monkeypatch.setattr("fedspan.benchmark.running.leases.WRITING", 0.1)
    write(leases).write_text(content)
    leases.claim(KEY).release(finished=True)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*file/leases.* .*choose another folder"):
        Leases(tmp_path / "file" / "leases").claim(KEY)
    with pytest.raises(UserError, match=r"cannot write .*file.* .*choose another folder"):
        Leases(tmp_path / "file").claim(KEY)


def race(folder, together, wins):
    together.wait()
    try:
        Leases(folder).claim(KEY)
        wins.put(os.getpid())
    except Busy:
        wins.put(None)
    together.wait()


@pytest.mark.parametrize("before", ["nothing", "a dead owner", "a free lease"])
def test_of_many_that_claim_at_once_one_wins(leases, before):
    if before == "a dead owner":
        write(leases, started="1")
    elif before == "a free lease":
        leases.claim(KEY).release(finished=False)
    context = multiprocessing.get_context("fork")
    together, wins = context.Barrier(4), context.Queue()
    racers = [context.Process(target=race, args=(leases.folder, together, wins)) for _ in range(4)]
    for racer in racers:
        racer.start()
    won = [wins.get(timeout=PATIENCE) for _ in racers]
    for racer in racers:
        racer.join()
    assert sum(winner is not None for winner in won) == 1


def test_a_lease_knows_how_many_cells_its_machine_computed_beside(leases, process_that_sleeps):
    """A cell that came and went counts; one on another machine does not, nor one whose owner is dead."""
    mine = leases.claim(KEY)
    assert mine.most_other_cells() == 0
    owner = asdict(Owner.me()) | {"pid": process_that_sleeps, "started": process(process_that_sleeps)[19]}
    others = [leases.folder / f"{number}{KEY[1:]}.1.json" for number in (1, 2, 3)]
    for path, changes in zip(others, ({}, ELSEWHERE, {"started": "1"}), strict=True):
        path.write_text(json.dumps({**owner, **changes}))
    assert mine.most_other_cells() == 1
    for path in others:
        path.unlink()
    assert mine.most_other_cells() == 1
    mine.release(finished=True)


@pytest.fixture
def process_that_sleeps():
    sleeper = subprocess.Popen(["sleep", str(PATIENCE)])
    yield sleeper.pid
    sleeper.kill()
    sleeper.wait()


# what anybody can write -----------------------------------------------------------------------------

FORGED = {
    "pid -1": '{"machine": "m", "host": "h", "pid": -1, "started": "", "parent": 1}',
    "pid 0": '{"machine": "m", "host": "h", "pid": 0, "started": "", "parent": 1}',
    "pid abc": '{"machine": "m", "host": "h", "pid": "abc", "started": "", "parent": 1}',
    "pid 1e30": '{"machine": "m", "host": "h", "pid": 1e30, "started": "", "parent": 1}',
    "a list": "[1, 2]",
    "a number": "17",
    "more fields": '{"pid": 1, "more": 2}',
    "deep": "[" * 100_000,
    "long": '{"host": "' + "x" * 20_000 + '"}',
}


@pytest.mark.parametrize("text", FORGED.values(), ids=FORGED.keys())
def test_a_lease_of_another_form_belongs_to_nobody(leases, clock, monkeypatch, text):
    monkeypatch.setattr(module, "WRITING", -1.0)
    leases.folder.mkdir()
    (leases.folder / f"{KEY}.1.json").write_text(text)
    assert list(leases.held()) == []
    leases.claim(KEY).release(finished=True)


def test_a_pipe_in_the_place_of_a_lease_is_not_waited_for(leases, clock, monkeypatch):
    monkeypatch.setattr(module, "WRITING", -1.0)
    leases.folder.mkdir()
    os.mkfifo(leases.folder / f"{KEY}.1.json")
    assert leases.owner(KEY) is None


def test_a_file_with_another_number_is_no_lease(leases):
    write(leases, number="٣")
    write(leases, number="9" * 40)
    assert leases.newest(KEY) == (0, None)


def test_a_copy_that_a_file_synchroniser_leaves_is_no_lease(leases):
    leases.folder.mkdir()
    for name in ("1.sync-conflict", "1.2"):
        (leases.folder / f"{KEY}.{name}.json").write_text("{}")
    assert list(leases.held()) == []
    assert leases.claim(KEY).number == 1


def test_only_the_system_says_from_whom_a_process_descends(leases):
    """A lease that names a living process of somebody else as our worker does not make it one."""
    child = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    try:
        grandchild = int(child.stdout.readline())
        for pid, ours in ((child.pid, True), (grandchild, True), (os.getpid(), False), (os.getppid(), False)):
            write(leases, pid=pid, parent=os.getpid(), started="")
            assert leases.owner(KEY).is_ours == ours
        os.kill(grandchild, signal.SIGKILL)
    finally:
        child.kill()
        child.wait()
