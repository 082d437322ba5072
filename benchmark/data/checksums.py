"""Digests of files, cached so that unchanged files are not read again."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedspan.benchmark.data.array_cache import is_reading_afresh
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.places import data_root
from fedspan.benchmark.records.atomic import write_json

log = logging.getLogger("fedspan")


def checksum(path: Path, algorithm: str) -> str:
    """Return the hex digest of a file by an `algorithm` of hashlib, stored on disk until the file changes."""
    try:
        return checksum_once(Path(os.path.realpath(path)), algorithm, file_state(path))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


@functools.lru_cache
def checksum_once(path: Path, algorithm: str, state: str) -> str:
    """Return `checksum`, cached in the process as long as `state` (`file_state`) stays the same."""
    return remembered(path, algorithm, state, lambda: checksum_now(path, algorithm))


def checksum_now(path: Path, algorithm: str) -> str:
    """Return `checksum`, always reading the file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def file_state(path: Path) -> str:
    """Return a string that changes with every change of a file, from its metadata alone."""
    found = path.stat()
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}"


def remembered(path: Path, what: str, signature: str, compute: Callable[[], str]) -> str:
    """Return ``compute()`` for `path`, cached under `data_root` as long as `signature` stays the same."""
    note = data_root() / "digests" / f"{hashlib.sha256(os.fsencode(path) + what.encode()).hexdigest()[:20]}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(note.read_text(encoding="utf-8"))
        if known["signature"] == signature and not is_reading_afresh():
            return str(known["digest"])
    log.info("hashing %s; again only after it changes", path)
    digest = compute()
    with suppress(UserError):  # a read-only folder only costs time
        write_json(note, {"path": str(path), "what": what, "signature": signature, "digest": digest})
    return digest
