"""MLflow's embedded database, created atomically: under another name, then linked into place.

An incomplete database, as left by an interruption of versions that created it in place, is set aside and recreated: the
records are the source of truth.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from filelock import lock_descriptor

from fedspan.benchmark.errors import CorruptFile
from fedspan.benchmark.records.atomic import check_regular, discard, set_aside
from fedspan.benchmark.records.index import EMBEDDED
from fedspan.benchmark.records.results import Results

NAME = EMBEDDED
PATIENCE = 60.0  # seconds that another process may take to create the database
BESIDE = ("-journal", "-wal", "-shm")  # suffixes of the files that SQLite keeps beside a database


class Unusable(Exception):
    """The database cannot be opened; the message says why."""


def uri_of(path: Path) -> str:
    """Return the URI of a database file for MLflow."""
    return f"sqlite:///{path.absolute()}"


def prepare(results: Results) -> None:
    """Ensure that a results folder has a complete embedded database; raise `Unusable` if impossible."""
    path = results.root / NAME
    if "?" in str(path.absolute()):
        raise Unusable("its path has a '?', which would end the path in its URI; rename the folder")
    try:
        results.root.mkdir(parents=True, exist_ok=True)
        with _alone(results.root):
            for left in results.root.glob(f".{NAME}.*"):
                discard(left)
            if path.exists() and not is_whole(path):
                set_aside(path, results.aside)
                for suffix in BESIDE:
                    discard(path.with_name(f"{NAME}{suffix}"))
            if not path.exists():
                _make(path, results.root)
    except OSError as error:
        raise Unusable(error.strerror or str(error)) from error


def is_whole(path: Path) -> bool:
    """Return whether a database has all of MLflow's tables, or runs of an earlier MLflow version.

    Raises `Unusable` at once if it cannot be opened; MLflow would retry for minutes.
    """
    from mlflow.store.tracking.dbmodels.models import Base

    try:
        check_regular(path)
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=rw", uri=True)) as found:
            tables = {name for [name] in found.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if set(Base.metadata.tables) <= tables:
                return True
            return "runs" in tables and found.execute("SELECT 1 FROM runs").fetchone() is not None
    except (CorruptFile, sqlite3.OperationalError) as error:
        raise Unusable(str(error)) from error
    except sqlite3.DatabaseError:  # not a database
        return False


def _make(path: Path, root: Path) -> None:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    new = root / f".{NAME}.{secrets.token_hex(4)}.tmp"
    try:
        SqlAlchemyStore(uri_of(new), (root / "mlartifacts").absolute().as_uri()).engine.dispose()
        os.link(new, path)
    finally:
        for suffix in ("", *BESIDE):
            discard(new.with_name(new.name + suffix))


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Admit one process at a time to check or create the database; the system frees the lock of a dead process."""
    deadline = time.monotonic() + PATIENCE
    handle = os.open(folder, os.O_RDONLY)
    try:
        while not lock_descriptor(handle, blocking=False):
            if time.monotonic() > deadline:
                raise Unusable("another process has been making it for too long")
            time.sleep(0.1)
        yield
    finally:
        os.close(handle)
