"""Index of a results folder: a summary of each record, so that no record file is read twice.

It is derived from the record files and never trusted over them. A row is valid while the files of its record are those
that were read, by inode, size and times; everything else about a record is in its file only. An index that is damaged
or of another version is rebuilt. If it cannot be written, or is somebody else's database, the record files are read,
which takes longer.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from fedspan.benchmark.records import model, record, sources, validation
from fedspan.benchmark.records.atomic import discard
from fedspan.benchmark.records.model import Record, core_seconds, judged, machine_of
from fedspan.benchmark.records.record import digest_of
from fedspan.benchmark.records.sources import code_provenance
from fedspan.benchmark.spec.cell import key_of

NAME = "index.db"
EMBEDDED = "mlflow.db"  # MLflow's database in a results folder
TABLES = (
    "CREATE TABLE records (key TEXT PRIMARY KEY, status TEXT, reason TEXT, digest TEXT, accuracy REAL, "
    "seconds REAL, machine TEXT, made TEXT, stamp TEXT, sum INTEGER, spec TEXT)",
    "CREATE TABLE mirrored (key TEXT, store TEXT, digest TEXT, PRIMARY KEY (key, store))",
)
FIELDS = "key, status, reason, digest, accuracy, seconds, machine, made, stamp, sum"
WAIT_SECONDS = 5.0  # for other writing processes
# A file that changes twice within one tick of the file system's clock keeps its times.
SETTLED_SECONDS = 2.0
# Errors that do not mean a damaged database.
ELSEWHERE = tuple(
    f"SQLITE_{name}" for name in ("BUSY", "LOCKED", "READONLY", "CANTOPEN", "FULL", "IOERR", "PERM", "NOMEM")
)

Content = tuple[int, frozenset[str]]  # version of a database, and the statements that made its tables
NOTHING: Content = (0, frozenset())
Stamps = Mapping[str, str | None]  # of each record's files, by key
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """Summary of a record without its curves.

    `accuracy` is the one by which the record is judged, in percent, and `seconds` are core seconds; each is None if the
    record has no such number. `machine` is the kind of machine that ran it. `digest` covers the whole record;
    `made` holds the part of its provenance that tells whether the current sources made it, as JSON.
    """

    key: str
    status: str
    reason: str | None
    digest: str
    accuracy: float | None
    seconds: float | None
    machine: str | None
    made: str

    @classmethod
    def about(cls, found: Record) -> Entry:
        """Return the entry of a record."""
        return cls(
            key=found["key"],
            status=found["status"],
            reason=found["reason"],
            digest=digest_of(found),
            accuracy=judged(found)[1],
            seconds=core_seconds(found),
            machine=machine_of(found["provenance"]),
            made=json.dumps(code_provenance(found["provenance"])),
        )

    @property
    def beginning(self) -> str:
        """The beginning of the digest, which distinguishes a record from a recomputed one."""
        return self.digest[:16]


def stamps(folder: Path) -> dict[str, str | None]:
    """Return a stamp that identifies each record's files in a folder, by key, in the order of keys.

    It is None if the files are so recent that a replacement could have the same stamp, or cannot be inspected.
    """
    files: dict[str, list[os.DirEntry[str]]] = {}
    with contextlib.suppress(OSError), os.scandir(folder) as listing:
        for file in listing:
            files.setdefault(file.name.partition(".")[0], []).append(file)
    settled = time.time() - SETTLED_SECONDS
    return {
        key: _stamp(sorted(beside, key=lambda file: file.name), settled)
        for key, beside in sorted(files.items())
        if any(file.name == f"{key}.json" for file in beside)
    }


def _stamp(files: Sequence[os.DirEntry[str]], settled: float) -> str | None:
    lines = []
    for file in files:
        try:
            now = file.stat()
        except OSError:
            return None
        if max(now.st_mtime, now.st_ctime) > settled:
            return None
        lines.append(f"{file.name} {now.st_dev} {now.st_ino} {now.st_size} {now.st_mtime_ns} {now.st_ctime_ns}")
    return "\n".join(lines)


def store_of(root: Path) -> str | None:
    """Return an ID of a results folder's tracking store: its address or the embedded database's inode; None if none.

    A database that was removed and recreated is another store, which is empty.
    """
    if address := os.environ.get("MLFLOW_TRACKING_URI"):
        return address
    try:
        return f"{EMBEDDED} {(root / EMBEDDED).stat().st_ino}"
    except OSError:
        return None


class Index:
    """The index of a results folder. Every call opens and closes it: processes fork, and other processes write."""

    def __init__(self, root: Path) -> None:
        self.path = root / NAME

    def entries(self, stamped: Stamps) -> dict[str, Entry]:
        """Return the entries of the records whose files still have the given stamps, by key."""

        def look(database: sqlite3.Connection) -> dict[str, Entry]:
            rows = database.execute(f"SELECT {FIELDS} FROM records LIMIT ?", (2 * len(stamped) + 1000,))
            return dict(_entries(rows, stamped))

        return self._with(look, {})

    def specs(self) -> dict[str, dict[str, Any]]:
        """Return the settings of the indexed cells, by key."""

        def look(database: sqlite3.Connection) -> dict[str, dict[str, Any]]:
            rows = database.execute("SELECT key, spec FROM records")
            found = ((key, json.loads(spec)) for key, spec in rows)
            return {key: spec for key, spec in found if key_of(spec) == key}

        return self._with(look, {})

    def keep(self, records: Mapping[str, tuple[Entry, str]], stamped: Stamps) -> None:
        """Store entries with their specs as JSON, under the stamps that the files had before they were read.

        Entries of files that no longer exist are deleted.
        """
        rows = [_row(*found, stamp) for key, found in records.items() if (stamp := stamped[key]) is not None]

        def write(database: sqlite3.Connection) -> None:
            known = [key for (key,) in database.execute("SELECT key FROM records")]
            gone = [(key,) for key in known if key not in stamped]
            database.executemany("DELETE FROM records WHERE key = ?", gone)
            database.executemany("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

        self._with(_at_once(write), None)

    def mirrored(self, store: str) -> dict[str, str]:
        """Return the beginnings of the digests of the records last known in a tracking store, by key."""

        def look(database: sqlite3.Connection) -> dict[str, str]:
            return dict(database.execute("SELECT key, digest FROM mirrored WHERE store = ?", (store,)))

        return self._with(look, {})

    def note_mirrored(self, store: str, digests: Mapping[str, str]) -> None:
        """Replace the known contents of a tracking store: the beginnings of its records' digests, by key."""

        def write(database: sqlite3.Connection) -> None:
            database.execute("DELETE FROM mirrored WHERE store = ?", (store,))
            rows = [(key, store, digest) for key, digest in digests.items()]
            database.executemany("INSERT INTO mirrored VALUES (?, ?, ?)", rows)

        self._with(_at_once(write), None)

    def _with(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        """Return the result of `work` on the database, `otherwise` if it is unusable; remove a damaged one."""
        try:
            with contextlib.closing(self._connected()) as database:
                return work(database)
        except _Foreign:
            return otherwise
        except (sqlite3.Error, ValueError) as error:  # invalid text or JSON is a ValueError
            if not getattr(error, "sqlite_errorname", "").startswith(ELSEWHERE):
                self._remove()
            return otherwise

    def _connected(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, timeout=WAIT_SECONDS, isolation_level=None)
        try:
            content = _content(database)
            if content != _ours():
                if _is_foreign(content):
                    raise _Foreign
                # an empty file stays: another process may be about to make its tables
                if content != NOTHING or not self.path.is_file():
                    database.close()
                    self._remove()
                    database = sqlite3.connect(self.path, timeout=WAIT_SECONDS, isolation_level=None)
                _at_once(_make)(database)
        except BaseException:
            database.close()
            raise
        return database

    def _remove(self) -> None:
        for suffix in ("-journal", ""):  # a journal left alone would be replayed into the next database
            discard(self.path.with_name(f"{NAME}{suffix}"))


def _at_once(write: Callable[[sqlite3.Connection], None]) -> Callable[[sqlite3.Connection], None]:
    """Return `write` as a transaction during which no other process writes."""

    def transaction(database: sqlite3.Connection) -> None:
        with database:
            database.execute("BEGIN IMMEDIATE")
            write(database)

    return transaction


def _ours() -> Content:
    """Return the content of a database of this version."""
    return _form(), frozenset(TABLES)


def _content(database: sqlite3.Connection) -> Content:
    """Return a database's content."""
    # in one statement, so that another process makes its tables before or after both are read
    [(version, _), *made] = database.execute(
        "SELECT user_version, NULL FROM pragma_user_version "
        "UNION ALL SELECT NULL, sql FROM sqlite_master WHERE sql IS NOT NULL"
    )
    return version, frozenset(text for _, text in made)


class _Foreign(Exception):
    """A database that is not an index."""


def _is_foreign(content: Content) -> bool:
    """Return whether a database has tables, but none of the index."""
    ours = ("CREATE TABLE records (", "CREATE TABLE mirrored (")
    return bool(content[1]) and not any(statement.startswith(ours) for statement in content[1])


def _make(database: sqlite3.Connection) -> None:
    if _content(database) != _ours():  # else another process has just made it
        for table in TABLES:
            database.execute(table)
        database.execute(f"PRAGMA user_version = {_form()}")


@cache
def _form() -> int:
    """Return a version number from all sources that determine rows: an index made by other code is rebuilt."""
    files = [Path(__file__), *(Path(str(module.__file__)) for module in (model, record, validation, sources))]
    return int(hashlib.sha256(b"\n".join(file.read_bytes() for file in files)).hexdigest()[:7], 16)


def _row(entry: Entry, spec: str, stamp: str) -> tuple[Any, ...]:
    values = (*astuple(entry), stamp)
    return *values, _sum(values), spec


def _sum(values: tuple[Any, ...]) -> int:
    """Return a checksum of a row: SQLite has none."""
    return zlib.crc32(repr(values).encode(errors="surrogatepass"))


def _entries(rows: Iterable[tuple[Any, ...]], stamped: Stamps) -> Iterator[tuple[str, Entry]]:
    """Yield the entries of intact rows that match the current files."""
    texts: dict[str, str] = {}  # thousands of records share the same sources
    for *values, made, stamp, total in rows:
        if stamped.get(values[0]) == stamp is not None and _sum((*values, made, stamp)) == total:
            yield values[0], Entry(*(*values, texts.setdefault(made, made)))
