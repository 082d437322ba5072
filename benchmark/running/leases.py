"""Leases: at most one process computes a cell at a time, across all machines that share a results folder.

A lease is a file ``<key>.<number>.json`` that only one process can create. Its owner touches it every `BEAT` seconds.
It is void when its owner is known to be dead (on the same machine) or has not touched it for `EXPIRY` seconds by the
clock of the waiting process: clocks of two machines are never compared. The next owner takes the next number, so only
one of two processes that find the same dead lease gets it, and an owner that merely slept sees that it has lost it.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fedspan.benchmark.errors import CorruptFile
from fedspan.benchmark.records.atomic import discard, read_json, unwritable

EXPIRY = 120.0  # longer than network file systems cache file attributes
BEAT = 15.0
LIMIT_BYTES = 16 * 1024
WRITING = 1.0  # seconds in which a process that has created a lease also writes it


class Busy(Exception):
    """Another process holds the lease of a cell; the message names it."""


@dataclass(frozen=True)
class Owner:
    """The process behind a lease. Owners with the same `machine` can see each other's processes."""

    machine: str
    host: str
    pid: Annotated[int, Meta(ge=1, lt=2**31)]  # invalid otherwise: 0 and below are process groups
    started: str
    parent: Annotated[int, Meta(ge=0, lt=2**31)]

    @staticmethod
    def me() -> Owner:
        """Return this process as an owner."""
        return Owner(
            machine=machine(),
            host=platform.node(),
            pid=os.getpid(),
            started=_started(os.getpid()) or "",
            parent=os.getppid(),
        )

    @property
    def gone(self) -> bool:
        """Whether the process is known to be dead; one on another machine never is."""
        if self.machine != machine():
            return False
        started = _started(self.pid)
        return started is None or bool(started and self.started and started != self.started)

    @property
    def is_ours(self) -> bool:
        """Whether it descends from this process, through others as Ray's workers do, according to the system.

        A lease may name any parent: it decides only where the system knows none.
        """
        parent = _parent(self.pid) or self.parent
        while parent > 1 and parent != os.getpid():
            parent = _parent(parent) or 0
        return (self.machine, parent) == (machine(), os.getpid())

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@cache
def machine() -> str:
    """Return an ID (boot ID and PID namespace) shared exactly by processes that can see each other."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the process state on; raise `OSError` if it cannot be read."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _parent(pid: int) -> int | None:
    """Return the parent of a process, None if unknown."""
    try:
        return int(_stat(pid)[1])
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """Return the start time of a process, ``""`` if unknown, or None if it has ended."""
    try:
        fields = _stat(pid)
        return None if fields[0] in "ZX" else fields[19]
    except OSError:  # ended, or no /proc, or it hides other users' processes
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except OSError:
            pass
        return ""


class Leases:
    """The leases of a results folder. An instance remembers when it saw each lease change: keep it while waiting."""

    def __init__(self, folder: Path, expiry: float = EXPIRY, beat: float = BEAT) -> None:
        self.folder, self.expiry, self.beat = folder, expiry, beat
        self._seen: dict[str, tuple[tuple[int, int], float]] = {}

    def claim(self, key: str) -> Lease:
        """Return the lease of a cell; raise `Busy` if another process holds it, `UserError` if it cannot be kept."""
        number, owner = self.newest(key)
        if owner is not None and not self._void(key, number, owner):
            raise Busy(str(owner))
        path = self._create(key, number + 1, json.dumps(asdict(Owner.me())))
        if path is None:
            raise Busy("another process, which was faster")
        return Lease(self, key, number + 1, path)

    def owner(self, key: str) -> Owner | None:
        """Return the process that computes a cell, or None."""
        number, owner = self.newest(key)
        return None if owner is None or self._void(key, number, owner) else owner

    def release_dead(self, key: str) -> bool:
        """Release a dead owner's lease; return whether there was one."""
        number, owner = self.newest(key)
        if owner is None or not self._void(key, number, owner):
            return False
        return self._create(key, number + 1, "{}") is not None

    def held(self) -> Iterator[Owner]:
        """Yield the owners of all leases that are not void."""
        newest: dict[str, int] = {}
        for path in self._files("*"):  # one listing: a file system may be slow, and most leases free
            key, said, _ = path.name.split(".")
            newest[key] = max(newest.get(key, 0), int(said))
        for key, number in newest.items():
            owner = self._read(self._path(key, number))
            if owner is not None and not self._void(key, number, owner):
                yield owner

    def forget(self, key: str) -> None:
        """Remove a cell's leases once it has a record."""
        for path in self._files(key):
            discard(path)

    def _files(self, key: str) -> list[Path]:
        paths = self.folder.glob(f"{key}.*.json")
        return [path for path in paths if re.fullmatch(r"[^.]+\.[0-9]{1,18}\.json", path.name)]

    def newest(self, key: str) -> tuple[int, Owner | None]:
        """Return (number, owner) of a cell's newest lease; number 0 if it has none, owner None if it is free."""
        number = self.newest_number(key)
        return (number, self._read(self._path(key, number))) if number else (0, None)

    def newest_number(self, key: str) -> int:
        """Return the number of a cell's newest lease, 0 if it has none."""
        return max(map(_number, self._files(key)), default=0)

    def _read(self, path: Path) -> Owner | None:
        deadline = time.monotonic() + WRITING
        while True:
            try:
                found = read_json(path, dict[str, Any], LIMIT_BYTES)
                return msgspec.convert(found, Owner) if found else None
            except FileNotFoundError:
                return None
            except (OSError, CorruptFile, msgspec.ValidationError):  # being written, or cut off by a loss of power
                if time.monotonic() > deadline:
                    return None
                time.sleep(0.05)

    def _void(self, key: str, number: int, owner: Owner) -> bool:
        if owner.gone:
            return True
        try:
            with self._path(key, number).open("rb") as file:  # opening makes a network file system ask its server
                stamp = (number, os.fstat(file.fileno()).st_mtime_ns)
        except OSError:
            return False
        seen, since = self._seen.get(key, (None, 0.0))
        if seen != stamp:
            self._seen[key] = (stamp, time.monotonic())
            return False
        return time.monotonic() - since > self.expiry

    def _path(self, key: str, number: int) -> Path:
        return self.folder / f"{key}.{number}.json"

    def _create(self, key: str, number: int, text: str) -> Path | None:
        path = self._path(key, number)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:  # a file of that name, too
            raise unwritable(path, error) from error
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            return None
        except OSError as error:
            raise unwritable(path, error) from error
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text)
        except OSError as error:
            discard(path)
            raise unwritable(path, error) from error
        for older in self._files(key):
            if _number(older) < number:
                discard(older)
        return path


def _number(path: Path) -> int:
    return int(path.name.split(".")[1])


class Lease:
    """Claim of this process to a cell until `release`; a thread touches the lease in the meantime."""

    def __init__(self, leases: Leases, key: str, number: int, path: Path) -> None:
        self.leases, self.key, self.number, self.path = leases, key, number, path
        self.lost = False
        self._other_cells = self.other_cells()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"lease {key}", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._end.wait(self.leases.beat):
            with contextlib.suppress(OSError):  # a network file system may be unavailable for a while
                if not self.mine:
                    self.lost = True
                    return
                os.utime(self.path)
                self._other_cells = max(self._other_cells, self.other_cells())

    def other_cells(self) -> int:
        """Return the number of cells that other processes of this machine are computing now.

        `most_other_cells` says which of them count.
        """
        try:
            return sum(owner.machine == machine() and owner.pid != os.getpid() for owner in self.leases.held())
        except OSError:
            return 0

    def most_other_cells(self) -> int:
        """Return the most cells seen in other processes of this machine: at the claim, at each beat, and now.

        Only cells with leases in the same folder count; any other load on the machine is unknown.
        """
        self._other_cells = max(self._other_cells, self.other_cells())
        return self._other_cells

    @property
    def mine(self) -> bool:
        """Whether no other process has taken over the lease; raise `OSError` if the folder cannot be read."""
        newest = self.leases.newest_number(self.key)
        return newest == self.number or not (newest or self.leases.folder.is_dir())

    @property
    def taken_over(self) -> bool:
        """Whether another process is known to have taken over the lease."""
        with contextlib.suppress(OSError):
            self.lost = self.lost or not self.mine
        return self.lost

    def check(self, at_once: bool = False) -> None:
        """Raise `Busy` if another process has taken the cell over because this one showed no sign of life.

        Uses the state seen at the last beat; with `at_once`, reads the folder again.
        """
        if self.taken_over if at_once else self.lost:
            raise Busy("another process, which has taken it over")

    def release(self, finished: bool) -> None:
        """Release the lease; `finished` if the cell has its record. A free lease keeps its number for the next."""
        self._end.set()
        self._thread.join()
        with contextlib.suppress(OSError):  # then it expires
            if finished:
                self.leases.forget(self.key)
            elif self.mine:
                free = self.path.with_suffix(f".{os.getpid()}.tmp")
                free.write_text("{}")
                free.replace(self.path)
