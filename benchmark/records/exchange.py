"""Exchange of records: imported records are checked, and collected unless they contradict records here."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fedspan.benchmark.errors import CorruptFile, UserError
from fedspan.benchmark.names import first_of
from fedspan.benchmark.records.model import Record
from fedspan.benchmark.records.record import Steps, dotted, is_record_file, paired
from fedspan.benchmark.records.record import read as read_record
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.sources import stale
from fedspan.benchmark.records.verification import Badge, Repeated
from fedspan.benchmark.records.verification import from_folder as verifications_of
from fedspan.benchmark.registry import UnknownPlugin
from fedspan.benchmark.spec.rebuild import DataElsewhere, OtherVersion, rebuild

# Costs that are measured, not counted: they differ between runs of a cell.
MEASURED = ("seconds", "processor_seconds", "seconds_at_round", "peak_memory_bytes", "memory_bytes")


@dataclass
class CheckOutcome:
    """Outcome of checking record files, by name, with remarks on the valid ones."""

    what: str = "records"
    good: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    badges: Counter[str] = field(default_factory=Counter)
    sources: dict[str, list[str]] = field(default_factory=dict)  # names of records by remark on their sources

    def remark(self, name: str, record: Record, badge: Badge) -> None:
        """Count a record by its badge, and note if its sources are not those available here."""
        self.badges[badge.text] += 1
        if said := sources_remark(record, badge):
            self.sources.setdefault(said, []).append(name)

    @property
    def empty(self) -> bool:
        """Whether no file was checked."""
        return not (self.good or self.known or self.refused)

    def summary(self, verb: str) -> str:
        """Return one line of counts."""
        parts = [f"{len(self.good)} {verb}"]
        if self.known:
            parts.append(f"{len(self.known)} known already")
        if self.refused:
            parts.append(f"{len(self.refused)} refused")
        return f"{self.what}: {', '.join(parts)}"

    def remarks(self) -> Iterator[str]:
        """Yield the remarks, one line each."""
        if self.badges:
            yield ", ".join(f"{count} {text}" for text, count in sorted(self.badges.items()))
        for said, names in sorted(self.sources.items()):
            yield f"{len(names)} {said}: {first_of(len(names), names[0])}"


def sources_remark(record: Record, badge: Badge) -> str:
    """Return a remark if a record was made by other, unknown or uncommitted sources, else an empty string."""
    try:
        if said := stale(record["provenance"], rebuild(record["spec"]).cell, badge.repeated_by):
            return said
    except DataElsewhere:
        pass
    except OtherVersion as error:
        return f"made by other versions ({error})"
    if uncommitted := record["provenance"].get("uncommitted"):
        return f"made by uncommitted sources ({', '.join(map(str, uncommitted))})"
    return ""


class NotInstalledHere(CorruptFile):
    """A record with no known fault, whose cell needs a plugin that is not installed on this machine."""


def read(path: Path) -> Record:
    """Return the record of an imported file; raise `CorruptFile` if it is invalid. The file is not moved."""
    try:
        found = read_record(path, sealed=True)
    except OSError as error:
        raise CorruptFile(error.strerror or str(error)) from error
    if found["status"] == "failed":
        raise CorruptFile("it failed, so it is not a result; run its cell again")
    return runnable(found)


def runnable(found: Record) -> Record:
    """Return the record if its cell can run here, else raise `CorruptFile`; other versions pass unchecked."""
    try:
        with contextlib.suppress(OtherVersion):
            rebuild(found["spec"])
    except UserError as error:
        kind = NotInstalledHere if isinstance(error, UnknownPlugin) else CorruptFile
        raise kind(f"its spec cannot be run here: {error}") from error
    return found


def record_files(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the record files among `paths`, and those in folders among them or in their subfolder `records`, once.

    A named sidecar is left out: it is read with its record.
    """
    seen: set[str] = set()
    for named in paths:
        if named.is_dir():
            folder = named / "records" if (named / "records").is_dir() else named
            found = sorted(folder.glob("*.json"))
        elif named.exists():
            found = [named]
        else:
            raise UserError(f"{named} does not exist; name record files, or a folder that holds them")
        for path in found:
            if (is_record_file(path) or path.suffix != ".json") and (real := os.path.realpath(path)) not in seen:
                seen.add(real)
                yield path


def validate_files(paths: Sequence[Path], repeated: Repeated, beside: Iterable[Record] = ()) -> CheckOutcome:
    """Check every record, and that records of the same task have the same data and the same partition.

    Records in `beside` are trusted: a record that contradicts one of them is refused.
    """
    found, digests = CheckOutcome(), DataDigests()
    for record in beside:
        digests.add(record, trusted=True)
    for path in record_files(paths):
        try:
            record = read(path)
            badge = repeated.of_record(record)
            digests.add(record, str(path), trusted=badge.state == "repeated")
            found.good.append(str(path))
            found.remark(str(path), record, badge)
        except CorruptFile as error:
            found.refused[str(path)] = str(error)
    outvoted = digests.outvoted()
    found.good = [name for name in found.good if name not in outvoted]
    found.refused |= outvoted
    return found


class DataDigests:
    """Data and partition digests by task, each with the records that have it. No task may have two."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], dict[str, list[_Witness]]] = {}

    def add(self, record: Record, name: str = "", trusted: bool = False) -> None:
        """Add the digests of a record. `outvoted` reports it by its `name`, and never reports one without a name."""
        for task, digest in _digests_by_task(record):
            self.seen.setdefault(task, {}).setdefault(digest, []).append(_Witness(record["key"], name, trusted))

    def outvoted(self) -> dict[str, str]:
        """Return, by name, the reasons to refuse records whose digest differs from the majority of their task.

        Trusted records outvote untrusted ones, so that forged records cannot get others refused. Without a majority,
        all records of the task are refused.
        """
        found: dict[str, str] = {}
        for (what, _), digests in self.seen.items():
            votes = {digest: (sum(one.trusted for one in here), len(here)) for digest, here in digests.items()}
            most = max(votes.values())
            right = [digest for digest, count in votes.items() if count == most]
            for digest, here in digests.items():
                if len(digests) > 1 and [digest] != right:
                    other = next(one for one in (*right, *digests) if one != digest)
                    why = _conflict(what, digest, digests[other][0].key, other)
                    found |= {one.name: why for one in here if one.name}
        return found


class _Witness(NamedTuple):
    """A record that supports a digest."""

    key: str
    name: str
    trusted: bool


def _digests_by_task(record: Record) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield ((name, task), digest) of a record: records with equal name and task must have equal digests."""
    spec, made = record["spec"], record["provenance"]
    split = {"partition": spec["partition"], "clients": spec["clients"], "seed": spec["seed"]}
    for name, digest, task in (
        ("dataset_digest", made.get("dataset_digest"), {"dataset": spec["dataset"]}),
        ("partition_digest", made.get("partition_digest"), {"dataset": spec["dataset"], **split}),
    ):
        if digest is not None:
            yield (name, json.dumps(task, sort_keys=True)), digest


def _conflict(name: str, digest: str, key: str, other: str) -> str:
    return f"its provenance.{name} is {digest[:12]}, but {other[:12]} in {key} on the same task"


def collect(results: Results, records: Iterable[tuple[str, Callable[[], Record]]]) -> CheckOutcome:
    """Import new records; refuse by name those that are damaged or contradict a record here, or most of the others.

    Two records of a cell agree if they have the same status, scores, curve and costs, except for costs that depend on
    how the cell ran. Two records of a task must have the same data; records here are trusted. Each record is loaded
    twice, so that memory holds one at a time.
    """
    found, digests, given = CheckOutcome(), DataDigests(), list(records)
    for record in results.all():
        digests.add(record, trusted=True)
    for name, load in given:
        with contextlib.suppress(CorruptFile):  # reported below
            digests.add(load(), name)
    outvoted = digests.outvoted()
    for name, load in given:
        try:
            if name in outvoted:
                raise CorruptFile(outvoted[name])
            record = load()
            here = results.read(record["key"])
            if (why := results.passed_over.get(results.path(record["key"]))) is not None:
                raise CorruptFile(f"{results.path(record['key'])} exists but cannot be used: {why}")
            if here is None:
                results.write(record)
                found.good.append(name)
            elif (difference := _difference(here, record)) is None:
                found.known.append(name)
            else:
                raise CorruptFile(f"it contradicts {results.path(record['key'])}: {difference}")
        except CorruptFile as error:
            found.refused[name] = str(error)
    return found


def check_verifications(folder: Path, into: Path | None = None) -> CheckOutcome:
    """Check every verification of a results folder, and copy the valid ones `into` another folder, if one is given."""
    found = CheckOutcome("verifications")
    for name, load in verifications_of(folder):
        try:
            one = load()
            known = into is not None and (into / one.name).exists()
            if into is not None:
                one.write(into)
            (found.known if known else found.good).append(name)
        except CorruptFile as error:
            found.refused[name] = str(error)
    return found


def _difference(here: Record, there: Record) -> str | None:
    for where, one, other in (*paired(here, there, "status", "scores", "curve"), *counted(here, there)):
        if one != other:
            return f"{dotted(where)} is {one!r} here and {other!r} there"
    return None


def counted(one: Record, other: Record) -> Iterator[tuple[Steps, Any, Any]]:
    """Return the steps to each cost that must agree in two records of a cell, and both values (None: missing).

    Costs that depend on how it ran are left out.
    """
    return (found for found in paired(one, other, "compute") if found[0][1] not in MEASURED)


def from_folder(folder: Path) -> Iterator[tuple[str, Callable[[], Record]]]:
    """Yield the name of each record in a folder, and a function that reads it."""
    for path in record_files([folder]):
        yield str(path), partial(read, path)


def recorded_words(record: Record) -> list[str]:
    """Return the settings that repeat a record's run, from its command; raise `CorruptFile` if there is none."""
    try:
        words = shlex.split(str(record["provenance"].get("command")))
    except ValueError:
        words = []
    if words[:2] != ["fedspan", "run"]:
        raise CorruptFile("it names no command that repeats it")
    return words[2:]
