"""Cache of decoded arrays on disk: made once, complete or absent, shared by all processes as memory maps.

An entry is the folder ``<cache>/decoded/<key>`` with one ``.npy`` file per array and a ``manifest.json`` that
describes these files. It is written under a temporary name, synced and renamed; a lock that dies with its holder
lets only one process make it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import AcquireReturnProxy, FileLock, Timeout

from fedspan.benchmark.errors import CorruptFile, UserError
from fedspan.benchmark.records.atomic import sync

log = logging.getLogger("fedspan")

FORMAT = 1  # of an entry; increase it when the meaning of the files changes
MANIFEST = "manifest.json"

Maker = Callable[[], tuple[Mapping[str, np.ndarray], Mapping[str, Any]]]

AFRESH = "FEDSPAN_AFRESH"  # set to 1 by `fedspan verify` for the processes that repeat a record
_afresh: ContextVar[bool] = ContextVar("afresh", default=False)


@contextmanager
def reading_afresh() -> Iterator[None]:
    """Inside the block, ignore sizes and mtimes and re-read contents."""
    token = _afresh.set(True)
    try:
        yield
    finally:
        _afresh.reset(token)


def is_reading_afresh() -> bool:
    """Return whether files must be read even if their sizes and times are known."""
    return _afresh.get() or os.environ.get(AFRESH) == "1"


@dataclass(frozen=True)
class Cached:
    """An entry: arrays as private (copy-on-write) memory maps, facts from its maker, and a sha256 of the arrays."""

    arrays: Mapping[str, np.ndarray]
    facts: Mapping[str, Any]
    digest: str


def cached(cache: Path, key: str, make: Maker) -> Cached:
    """Return the entry `key` of the folder `cache`; call `make` if it is absent or damaged.

    `key` (lower case letters, digits, ``-`` and ``_``) must change with everything that changes the arrays.
    `make` returns (arrays by name, facts that JSON can hold). If several processes ask at once, one makes the
    entry and the others wait. Raises `UserError` if the folder cannot be written, and any error of `make`; then
    nothing is kept.
    """
    if not re.fullmatch(r"[a-z0-9_-]+", key):
        raise ValueError(f"not a cache key: {key!r}")
    place = cache / "decoded" / key
    with suppress(CorruptFile):
        if place.is_dir():
            return _open(place)
    with _writing(place.parent):
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = _acquired(FileLock(place.parent / f"{key}.lock"), key)
    with lock:
        if place.is_dir():  # another process made it meanwhile, or it is damaged
            try:
                return _open(place)
            except CorruptFile as error:
                log.warning("the decoded arrays in %s are damaged (%s); decoding them again", place, error)
        with _new_folder(place) as folder:
            arrays, facts = make()
            with _writing(place.parent):
                _write(folder, arrays, facts)
        return _open(place)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn an error of the file system into a one-line `UserError` that says what to do."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write decoded arrays to {folder}: {error.strerror or error}; "
            "free space there, or choose another folder with paths.data (or FEDSPAN_DATA)"
        ) from error


def _acquired(lock: FileLock, key: str) -> AcquireReturnProxy:
    """Acquire the lock for a with block; the operating system also releases it when its holder dies."""
    try:
        return lock.acquire(blocking=False)
    except Timeout:
        log.info("waiting for another process that makes %s", key)
        return lock.acquire()


@contextmanager
def _new_folder(place: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `place` at the end, or removed on failure; needs the lock."""
    temporary = f".{place.name}."
    with _writing(place.parent):
        for leftover in place.parent.iterdir():  # of a killed process
            if leftover.name.startswith(temporary):
                shutil.rmtree(leftover, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(dir=place.parent, prefix=temporary))
    try:
        yield folder
        with _writing(place.parent):
            folder.chmod(0o755)
            sync(folder)
            if place.exists():  # damaged; processes that have mapped its files keep them
                os.replace(place, folder.with_suffix(".damaged"))
            os.replace(folder, place)
            sync(place.parent)
            shutil.rmtree(folder.with_suffix(".damaged"), ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(folder: Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    described = {}
    for name, array in arrays.items():
        whole = np.ascontiguousarray(array)
        path = folder / f"{name}.npy"
        with path.open("wb") as file:
            np.save(file, whole, allow_pickle=False)
        sync(path)
        stat = path.stat()
        described[name] = {
            "shape": list(whole.shape),
            "dtype": whole.dtype.str,
            "sha256": _sha256(whole),
            "bytes": stat.st_size,
            "mtime_ns": stat.st_mtime_ns,
        }
    manifest = {"format": FORMAT, "arrays": described, "facts": dict(facts)}
    path = folder / MANIFEST
    path.write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    sync(path)


def _open(place: Path) -> Cached:
    """Return an entry without reading its arrays; raise `CorruptFile` if a file is not what its maker wrote.

    Sizes and modification times are always compared. If only a time differs (the entry was copied or changed),
    and inside `reading_afresh`, the content is compared too.
    """
    try:
        manifest = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise CorruptFile(f"its format is {manifest['format']!r}, this version reads {FORMAT}")
        arrays = {name: _map(place / f"{name}.npy", entry) for name, entry in manifest["arrays"].items()}
        digests = [
            [name, entry["shape"], entry["dtype"], entry["sha256"]] for name, entry in manifest["arrays"].items()
        ]
        digest = hashlib.sha256(json.dumps(digests).encode()).hexdigest()
        return Cached(arrays, dict(manifest["facts"]), digest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFile(f"{type(error).__name__}: {error}") from error


def _map(path: Path, entry: Mapping[str, Any]) -> np.ndarray:
    stat = path.stat()
    if stat.st_size != entry["bytes"]:
        raise CorruptFile(f"{path.name} has {stat.st_size} bytes instead of {entry['bytes']}")
    # Copy-on-write: torch accepts it without a warning, pages are shared, and no process can change the file.
    array = np.load(path, mmap_mode="c", allow_pickle=False)
    if list(array.shape) != entry["shape"] or array.dtype.str != entry["dtype"]:
        raise CorruptFile(f"{path.name} holds {array.dtype.str}{list(array.shape)}")
    if stat.st_mtime_ns != entry["mtime_ns"] or is_reading_afresh():
        if _sha256(array) != entry["sha256"]:
            raise CorruptFile(f"the content of {path.name} was changed")
        with suppress(OSError):  # saves the next start from reading it; a read-only entry is read every time
            os.utime(path, ns=(stat.st_atime_ns, entry["mtime_ns"]))
    return array


def _sha256(array: np.ndarray) -> str:
    return hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()
