"""Records: immutable JSON files of finished cells, the source of truth from which everything else is made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fedspan.benchmark.errors import CorruptFile
from fedspan.benchmark.records.atomic import content_of
from fedspan.benchmark.records.model import Record
from fedspan.benchmark.records.validation import check_schema, check_texts, validate

LIMIT_BYTES = 64 * 1024
WHOLE_BYTES = 256 * 2**20  # of a sidecar, or of a record stored without sidecars
# Fields moved to sidecar files, in this order, when a record exceeds LIMIT_BYTES.
SIDECARS = {
    name: f".{name}.json" for name in ("spectra", "diagnostics", "curve", "digests", "compute", "fleet", "scores")
}

Steps = tuple[str, ...]  # names from a record, or a part of it, to a value: ("compute", "flops", "train")


def digest_of(record: Mapping[str, Any]) -> str:
    """Return a sha256 over a whole record, including its sidecar fields."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def short_digest(record: Mapping[str, Any]) -> str:
    """Return the beginning of a record's digest, which distinguishes it from a recomputed record."""
    return digest_of(record)[:16]


def flatten(value: Any, above: Steps = ()) -> Iterator[tuple[Steps, Any]]:
    """Yield the leaves of nested mappings with the steps to them; lists are leaves."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flatten(item, (*above, str(key)))
    else:
        yield above, value


def dotted(steps: Steps) -> str:
    """Return the steps to a leaf as one name to show; a step may have dots itself, so two leaves may share a name."""
    return ".".join(steps)


def leaves_of(record: Record, *fields: str) -> dict[Steps, Any]:
    """Return the leaves of some fields of a record by the steps to them; none for a missing field."""
    whole: Mapping[str, Any] = record
    return dict(flatten({field: whole.get(field, {}) for field in fields}))


def paired(one: Record, other: Record, *fields: str) -> Iterator[tuple[Steps, Any, Any]]:
    """Yield the steps to each leaf of some fields of two records, and both values (None: missing), field by field."""
    for field in fields:
        first, second = leaves_of(one, field), leaves_of(other, field)
        for steps in sorted({*first, *second}):
            yield steps, first.get(steps), second.get(steps)


def is_record_file(path: Path) -> bool:
    """Return whether a file in a folder of records is a record, not a sidecar, judging by its name."""
    return path.suffix == ".json" and not path.name.endswith(tuple(SIDECARS.values()))


def read(path: Path, sealed: bool = False) -> Record:
    """Return the record of a file, with the contents of its sidecar files. A `sealed` one must have a digest.

    Raises `CorruptFile` with the first fault, and `OSError` if the file cannot be read.
    """
    content = content_of(path, LIMIT_BYTES)
    return parse(content, path, sealed)


def parse(content: bytes, path: Path | None, sealed: bool = False) -> Record:
    """Return the record in the content of a file; raise `CorruptFile` if it is invalid.

    Without a path, as from another store, it has no sidecars, and its key is not compared with a file name.
    """
    try:
        raw = msgspec.json.decode(content)
        if isinstance(raw, dict):
            check_schema(raw)
            check_texts(raw, content)
            _take_sidecars(raw, path)
        record = validate(raw, path.stem if path else None)
        digest = record.pop("digest", None)
        if sealed and digest is None:
            raise CorruptFile("it has no digest")
        if digest not in (None, digest_of(record)):
            raise CorruptFile("its digest does not match: it was changed after it was written")
        return record
    except (ValueError, OverflowError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise CorruptFile(str(error)) from error


def files_of(path: Path) -> list[Path]:
    """Return the files of a record: its own, and the sidecars that it names; its own alone if it cannot be read."""
    try:
        raw = msgspec.json.decode(content_of(path, LIMIT_BYTES))
    except (CorruptFile, OSError, ValueError, RecursionError):
        return [path]
    named = _sidecars(raw) if isinstance(raw, dict) else {}
    return [path, *(path.with_name(name) for field, name in named.items() if name == f"{path.stem}{SIDECARS[field]}")]


def _sidecars(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sidecar that a record's file names for each field that has one."""
    fields = {field: raw[field] for field in SIDECARS if isinstance(raw.get(field), dict)}
    return {field: value["sidecar"] for field, value in fields.items() if "sidecar" in value}


def _take_sidecars(raw: dict[str, Any], path: Path | None) -> None:
    """Put the contents of a record's sidecar files back into it."""
    for field, named in _sidecars(raw).items():
        if path is None or named != f"{path.stem}{SIDECARS[field]}":
            raise CorruptFile(f"its sidecar is called {named!r}")
        try:
            content = content_of(path.parent / named, WHOLE_BYTES)
            raw[field] = msgspec.json.decode(content)
            check_texts({field: raw[field]}, content)
        except OSError as error:
            raise CorruptFile(f"its sidecar {named}: {error.strerror or error}") from error
        except (CorruptFile, ValueError, RecursionError) as error:
            raise CorruptFile(f"its sidecar {named}: {error}") from error
