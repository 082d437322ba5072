"""Atomic writes (under a temporary name, synced, renamed), and reads with a size limit."""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fedspan.benchmark.errors import CorruptFile, UserError

T = TypeVar("T")


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path`, or leave it unchanged; raise `UserError` if the folder cannot be written."""
    with replacing(path) as new:
        new.write_bytes(content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield an empty file that replaces `path` after the block, unless the block fails.

    An `OSError` in the block, such as a full disk, becomes a `UserError`.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        os.close(os.open(new, os.O_CREAT | os.O_EXCL, 0o666))  # default permissions: folders are shared
        temporary = new
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        temporary = None
        sync(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        if temporary is not None:
            discard(temporary)


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_regular(path: Path, limit: float = math.inf) -> None:
    """Raise `CorruptFile` unless `path` is a regular file of at most `limit` bytes: pipes and devices never end."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise CorruptFile("it is not a regular file")
    if about.st_size > limit:
        raise CorruptFile(f"it has {about.st_size} bytes, more than {limit}")


def content_of(path: Path, limit: int) -> bytes:
    """Return the bytes of a regular file of at most `limit` bytes, else raise `CorruptFile`."""
    check_regular(path, limit)
    return path.read_bytes()


def read_json(path: Path, kind: type[T], limit: int) -> T:
    """Return the content of a JSON file as a `kind`; raise `CorruptFile`, or `OSError` if it is unreadable."""
    try:
        return msgspec.json.decode(content_of(path, limit), type=kind)
    except (ValueError, OverflowError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise CorruptFile(str(error)) from error


def discard(path: Path) -> None:
    """Remove a file, or a folder with its contents, if it exists; ignore failures."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def unwritable(path: Path, error: OSError) -> UserError:
    """Return a `UserError` that says what to do about a file that cannot be written."""
    return UserError(
        f"cannot write {path}: {error.strerror or error}; free space, or choose another folder with paths.results"
    )


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON, atomically; raise `ValueError` for NaN and infinities."""
    write_atomically(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def set_aside(path: Path, folder: Path) -> Path:
    """Move a damaged file into `folder` under a free name, and return its new path."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while (target := folder / f"{path.name}.{number}").exists():
        number += 1
    os.replace(path, target)
    return target
