"""The results folder: records, failures, checkpoints and files set aside."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedspan.benchmark.errors import CorruptFile, LaterVersion, UserError
from fedspan.benchmark.patience import doing
from fedspan.benchmark.records.atomic import discard, set_aside, unwritable, write_json
from fedspan.benchmark.records.index import Entry, Index, stamps
from fedspan.benchmark.records.model import Record
from fedspan.benchmark.records.record import LIMIT_BYTES, SIDECARS, digest_of, is_record_file, parse, read

log = logging.getLogger("fedspan")

ABANDONED_SECONDS = 24 * 3600.0  # age at which an unfinished file counts as abandoned
TRAINED_BYTES = 2 * 2**30  # of trained models kept for cells with the same training
FEW = 50  # records; fewer are read faster than the index
TOLD = 2000  # characters kept of a failure's reason, and of its traceback


class Results:
    """The results folder: records, failures, checkpoints and files set aside.

    A process that computes sets damaged files aside. With ``sets_aside=False``, for processes that only read, nothing
    is moved; `passed_over` holds the unused files with the reason. A file that cannot be opened, or that a later
    version wrote, is always passed over.
    """

    def __init__(self, root: Path, sets_aside: bool = True) -> None:
        self.root = root
        self.sets_aside = sets_aside
        self.passed_over: dict[Path, str] = {}
        self.records = root / "records"
        self.failures = root / "failures"
        self.earlier = self.failures / "earlier"  # of cells that are to run again, until they have another outcome
        self.checkpoints = root / "checkpoints"
        self.models = root / "trained"
        self.status = root / "status"
        self.leases = root / "leases"
        self.verifications = root / "verifications"
        self.aside = root / "set_aside"

    def check_there(self) -> None:
        """Raise `UserError` if there is no such folder, so that a mistyped one is not taken for an empty one."""
        if not self.root.is_dir():
            raise UserError(f"there is no folder {self.root}; name another with paths.results=DIR")

    def check_writable(self) -> None:
        """Raise `UserError` if the folder cannot be written, now rather than after hours of training."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root) as probe:  # nameless: a kill leaves nothing behind
                probe.write(b"x" * LIMIT_BYTES)
        except OSError as error:
            raise unwritable(self.root, error) from error

    def path(self, key: str) -> Path:
        """Return the path of a cell's record."""
        return self.records / f"{key}.json"

    def checkpoint(self, key: str) -> Path:
        """Return the path of a cell's checkpoint."""
        return self.checkpoints / f"{key}.safetensors"

    def trained_model_path(self, train_key: str) -> Path:
        """Return the path of a trained model, kept for cells that differ only in what follows training."""
        return self.models / f"{train_key}.safetensors"

    def forget_failure(self, key: str) -> None:
        """Prepare another attempt at a cell: keep its failure among the `earlier` ones, and delete its status file.

        Its checkpoint stays. If the attempt has no outcome, because it is interrupted, `failed` still returns the cell.
        """
        path, status = (folder / f"{key}.json" for folder in (self.failures, self.status))
        try:
            with contextlib.suppress(FileNotFoundError):  # there is none, or another grid has just done so
                self.earlier.mkdir(exist_ok=True)
                path.replace(self.earlier / path.name)
            status.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"cannot remove {path}: {error.strerror or error}") from error

    def failed(self) -> list[Record]:
        """Return the last known failure of each cell that has no record, by key."""
        found = {path.stem: path for folder in (self.earlier, self.failures) for path in folder.glob("*.json")}
        failures = (self._read(path) for key, path in sorted(found.items()) if not self.path(key).exists())
        return [failure for failure in failures if failure is not None]

    def clear_temporary(self, key: str, train_key: str) -> None:
        """Remove unfinished files that an earlier owner of the cell left when it was killed.

        A running cell with the same training may be writing its model meanwhile: it then continues without it.
        """
        for folder, name in (
            (self.records, key),
            (self.failures, key),
            (self.checkpoints, key),
            (self.models, train_key),
        ):
            for path in folder.glob(f".{name}.*.tmp"):
                discard(path)

    def remove_leftovers(self) -> None:
        """Remove files of finished cells left by a kill or a failing disk: checkpoints, leases and the like."""
        for folder in (self.records, self.failures, self.earlier, self.checkpoints, self.status, self.leases):
            for path in folder.glob("*") if folder != self.records else folder.glob(".*.tmp"):
                if self.path(path.name.lstrip(".").split(".")[0]).exists():
                    discard(path)

    def prune_trained(self) -> None:
        """Keep the most recently used trained models, at most `TRAINED_BYTES`; remove abandoned unfinished ones too."""
        found = []
        for path in self.models.glob(".*.tmp"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                    discard(path)
        for path in self.models.glob("*.safetensors"):
            with contextlib.suppress(OSError):  # another worker removed it
                found.append((path.stat().st_mtime_ns, path.stat().st_size, path))
        total = 0
        for _, size, path in sorted(found, reverse=True):
            total += size
            if total > TRAINED_BYTES:
                with contextlib.suppress(OSError):
                    path.unlink()

    def read(self, key: str) -> Record | None:
        """Return a record or None. A corrupt one counts as absent: it is set aside, or passed over, with a warning."""
        return self._read(self.path(key))

    def check_free(self, key: str) -> None:
        """Raise `UserError` if a cell has a record that was passed over: it must not be replaced."""
        path = self.path(key)
        if path in self.passed_over and os.path.lexists(path):
            raise UserError(f"{path} cannot be used ({self.passed_over[path]}) and is not replaced; move it away")

    def failure(self, key: str) -> Record | None:
        """Return the failure of a cell or None."""
        return self._read(self.failures / f"{key}.json")

    def all(self) -> Iterator[Record]:
        """Yield every valid record, in the order of keys."""
        for path in sorted(self.records.glob("*.json")):
            if is_record_file(path) and (record := self._read(path)) is not None:
                yield record

    def entries(self, keys: Sequence[str] | None = None) -> dict[str, Entry]:
        """Return the summaries of valid records, by key, in order; by default of all records.

        Files that have not changed since they were indexed are not read again.
        """
        if keys is not None and len(keys) < FEW:
            found = ((key, self.read(key)) for key in keys)
            return {key: Entry.about(record) for key, record in found if record is not None}
        index, stamped = Index(self.root), stamps(self.records)
        known, new = index.entries(stamped), dict[str, tuple[Entry, str]]()
        asked = list(stamped) if keys is None else [key for key in dict.fromkeys(keys) if key in stamped]
        with doing(f"reading {sum(key not in known for key in asked):,} records"):
            for key in asked:
                if key not in known and (record := self.read(key)) is not None:
                    known[key] = Entry.about(record)
                    new[key] = known[key], json.dumps(record["spec"])
        if new:
            index.keep(new, stamped)
        return {key: known[key] for key in asked if key in known}

    def specs(self) -> Iterator[tuple[Entry, dict[str, Any]]]:
        """Yield the summary of every valid record, with the settings of its cell."""
        entries, specs = self.entries(), Index(self.root).specs()
        for key, entry in entries.items():
            if key in specs:
                yield entry, specs[key]
            elif (record := self.read(key)) is not None:
                yield entry, dict(record["spec"])

    def _read(self, path: Path) -> Record | None:
        try:
            return read(path, sealed=path.parent == self.records)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            self._pass_over(path, error.strerror or str(error))
        except LaterVersion as error:
            self._pass_over(path, f"{error}; a later version of FedSpan wrote it")
        except CorruptFile as error:
            if self.sets_aside:
                self._set_aside(path, str(error))
            else:
                self._pass_over(path, str(error))
        return None

    def _pass_over(self, path: Path, why: str) -> None:
        if self.passed_over.get(path) != why:
            log.warning("%s is passed over: %s", path, why)
        self.passed_over[path] = why

    def _set_aside(self, path: Path, why: str) -> None:
        try:
            now = self._move(path)
        except FileNotFoundError:  # another process has moved it
            return
        except OSError as error:
            raise UserError(f"{path} is damaged ({why}) and cannot be set aside: {error}; move it away") from error
        log.warning("%s is damaged: %s; it was moved to %s", path, why, now)

    def set_record_aside(self, key: str) -> None:
        """Set the record of a cell aside, so that the cell is recomputed, unless another process has done so."""
        try:
            self._move(self.path(key))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise UserError(f"{self.path(key)} cannot be set aside: {error.strerror or error}") from error

    def _move(self, path: Path) -> Path:
        now = set_aside(path, self.aside)
        for suffix in SIDECARS.values():
            if (sidecar := path.with_name(f"{path.stem}{suffix}")).exists():
                set_aside(sidecar, self.aside)
        return now

    def write(self, record: Record) -> None:
        """Store a record. A `failed` one goes to the failures and is retried next time; all others are final.

        While a record exceeds 64 KiB, its fields in `SIDECARS` move, one after the other, to files named in the record.
        """
        failed = record["status"] == "failed"
        stored: dict[str, Any] = {**_shortened(record)} if failed else {**record, "digest": digest_of(record)}
        key = parse(json.dumps(stored).encode(), None)["key"]  # as a reader gets it, after JSON
        if failed:
            write_json(self.failures / f"{key}.json", stored)
            discard(self.earlier / f"{key}.json")
            return
        self.check_free(key)
        for field, suffix in SIDECARS.items():
            if field in stored and len(json.dumps(stored, indent=1)) >= LIMIT_BYTES:  # with its final newline
                sidecar = self.records / f"{key}{suffix}"
                write_json(sidecar, stored[field])
                stored[field] = {"sidecar": sidecar.name}
        write_json(self.path(key), stored)
        for folder in (self.failures, self.earlier, self.status):
            discard(folder / f"{key}.json")
        discard(self.checkpoint(key))


def _shortened(failure: Record) -> Record:
    """Return a failure with only the beginning of its reason and the end of its traceback: files have a size limit.

    Bytes of file names that are not UTF-8 are escaped: JSON cannot hold them.
    """
    short = failure.copy()
    short["reason"] = _utf8(failure["reason"] or "")[:TOLD] or None
    if "traceback" in failure:
        short["traceback"] = _utf8(failure["traceback"])[-TOLD:]
    return short


def _utf8(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
