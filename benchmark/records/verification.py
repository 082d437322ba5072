"""Verifications: small immutable files with the outcome of recomputing a record and the machine that did it.

A verification counts for the record whose digest it names, not for later records of the same cell.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from fedspan.benchmark.errors import CorruptFile, UserError, require
from fedspan.benchmark.fields import from_values
from fedspan.benchmark.names import counted_as
from fedspan.benchmark.records.atomic import read_json, write_json
from fedspan.benchmark.records.model import Record
from fedspan.benchmark.records.record import digest_of
from fedspan.benchmark.records.results import Results

SCHEMA = 1
LIMIT_BYTES = 16 * 1024
HEX = re.compile(r"[0-9a-f]{64}")
KEY = re.compile(r"[0-9a-f]{20}")


@dataclass(frozen=True)
class RecordSample:
    """A random sample of records: `size` of the `of` records that `among` names, drawn with the seed `sample_seed`."""

    size: int = 0
    of: int = 0
    sample_seed: int = 0
    among: str = ""

    def __str__(self) -> str:
        return f"{self.size} of {self.of} records of {self.among}, drawn with sample_seed={self.sample_seed}"


@dataclass(frozen=True)
class Verification:
    """Outcome of recomputing the cell `key` and comparing it with its record, given by the digest `record`.

    `compared` is the basis: digests of weights or, for records without digests, the numbers alone. If the outcome is
    `differs`, `where` is the first value that differs, `round` the first evaluated round that does (None if no round
    does), and `points` the recomputed accuracy minus the recorded one, in percentage points (None if either is
    missing). The other fields describe the recomputing machine: `instructions` is its processor's widest instruction
    set, `date` is in UTC.
    """

    key: str
    record: str
    outcome: Literal["identical", "differs"]
    compared: Literal["digests", "numbers"]
    date: str
    processor: str
    instructions: str
    numerics: str
    device: str
    versions: dict[str, Any]
    sources: dict[str, Any]
    engine: str
    where: str = ""
    round: int | None = None
    points: float | None = None
    sample: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(bool(KEY.fullmatch(self.key)), "key", "must be 20 hexadecimal digits", self.key)
        require(bool(HEX.fullmatch(self.record)), "record", "must be a sha256 in hexadecimal", self.record)
        require(bool(self.where) == (self.outcome == "differs"), "where", "must say what differs", self.where)
        require(self.round is None or self.round >= 1, "round", "must be at least 1", self.round)
        require(self.points is None or abs(self.points) <= 100, "points", "must lie in -100..100", self.points)
        if self.outcome == "identical":
            require(self.round is None and not self.points, "round and points", "are of what differs", self.round)
        try:
            moment = datetime.datetime.fromisoformat(self.date)
        except ValueError:
            moment = None
        require(bool(moment and moment.tzinfo), "date", "must be an ISO 8601 date and time with a zone", self.date)
        for name in ("versions", "sources"):
            texts = all(isinstance(value, str) for value in getattr(self, name).values())
            require(texts, name, "must map names to texts", getattr(self, name))
        if self.sample:
            from_values(RecordSample, self.sample, "sample")

    @property
    def kind(self) -> str:
        """The kind of processor that computed: the GPU's model, or the CPU's and its instructions."""
        return self.device if self.device != "cpu" else f"{self.processor}, {self.instructions}"

    @property
    def name(self) -> str:
        """The file name."""
        return f"{self.key}.{self._digest()[:16]}.json"

    def _digest(self) -> str:
        return digest_of({"schema": SCHEMA, **dataclasses.asdict(self)})

    def write(self, folder: Path) -> Path:
        """Write the verification to `folder` unless it is there; return its path."""
        path = folder / self.name
        if not path.exists():
            write_json(path, {"schema": SCHEMA, **dataclasses.asdict(self), "digest": self._digest()})
        return path


def read(path: Path) -> Verification:
    """Return the verification in a file; raise `CorruptFile` with the first fault."""
    try:
        raw = read_json(path, dict[str, Any], LIMIT_BYTES)
    except OSError as error:
        raise CorruptFile(error.strerror or str(error)) from error
    if raw.get("schema") != SCHEMA:
        raise CorruptFile(f"it is not a verification of schema {SCHEMA}")
    digest = raw.pop("digest", None)
    del raw["schema"]
    wanted = {one.name for one in dataclasses.fields(Verification) if one.default is dataclasses.MISSING}
    if lacking := wanted - set(raw) - {"sample"}:
        raise CorruptFile(f"it lacks {', '.join(sorted(lacking))}")
    try:
        found = from_values(Verification, raw, "")
    except UserError as error:
        raise CorruptFile(str(error).replace("unknown field '.", "unknown field '")) from error
    if found._digest() != digest:
        raise CorruptFile("its digest does not match: it was changed after it was written")
    if found.name != path.name:
        raise CorruptFile(f"its name should be {found.name}")
    return found


class Repeated:
    """Repetitions of records: the readable verifications of a results folder."""

    def __init__(self, found: Iterable[Verification] = ()) -> None:
        self._by_record: dict[str, list[Verification]] = {}
        for one in found:
            self._by_record.setdefault(one.record, []).append(one)

    @classmethod
    def of(cls, results: Results) -> Repeated:
        """Return the repetitions in a results folder; 'fedspan validate' names the files that cannot be read."""
        return cls(readable(results.root))

    def of_record(self, record: Record) -> Badge:
        """Return the badge of a record."""
        return self.of_digest(record["key"], digest_of(record)) if self._by_record else Badge()

    def of_digest(self, key: str, digest: str) -> Badge:
        """Return the badge of the record with that key and digest."""
        return Badge(tuple(one for one in self._by_record.get(digest, ()) if one.key == key))


@dataclass(frozen=True)
class Badge:
    """Badge of a record for readers: whether it was repeated."""

    verifications: tuple[Verification, ...] = ()

    def _kinds(self, outcome: str) -> int:
        return len({one.kind for one in self.verifications if one.outcome == outcome})

    @property
    def state(self) -> Literal["repeated", "mixed", "refuted", "unverified"]:
        """The outcome over all machines: `mixed` if some repeat the record and others cannot, which is not hidden."""
        if not self.verifications:
            return "unverified"
        if not self._kinds("identical"):
            return "refuted"
        return "mixed" if self._kinds("differs") else "repeated"

    @property
    def machines(self) -> int:
        """The number of kinds of processor on which the record was repeated."""
        return self._kinds("identical")

    @property
    def repeated_by(self) -> tuple[Verification, ...]:
        """The identical repetitions."""
        return tuple(one for one in self.verifications if one.outcome == "identical")

    @property
    def text(self) -> str:
        """The state in a few words."""
        same, other = self._kinds("identical"), self._kinds("differs")
        repeated = f"repeated on {counted_as(same, 'kind')} of processor"
        return {
            "unverified": "not repeated yet",
            "refuted": "could not be repeated",
            "repeated": repeated,
            "mixed": f"{repeated}, not on {other}",
        }[self.state]

    @property
    def details(self) -> tuple[str, ...]:
        """One line for each verification."""
        return tuple(sentence(one) for one in self.verifications)


def sentence(one: Verification) -> str:
    """Return one line with the outcome of a repetition, its machine and its date."""
    by = "" if one.compared == "digests" else ", by curve and scores"
    text = one.outcome + by
    if one.outcome == "differs":
        text += f" from round {one.round} on" if one.round else f" in {one.where}"
        text += "" if one.points is None else f", {one.points:+.2f} points"
    return f"{text} ({one.kind}, numerics {one.numerics}, torch {one.versions.get('torch', '?')}, {one.date[:10]})"


def samples(badges: Iterable[Badge]) -> list[tuple[str, str]]:
    """Return each sample of verified records, with its outcome."""
    drawn: dict[str, list[Verification]] = {}
    for one in (one for badge in badges for one in badge.verifications):
        if one.sample:
            drawn.setdefault(str(from_values(RecordSample, one.sample, "sample")), []).append(one)
    return [(text, _outcomes(found)) for text, found in sorted(drawn.items())]


def _outcomes(found: Sequence[Verification]) -> str:
    same = len({one.key for one in found if one.outcome == "identical"})
    other = len({one.key for one in found if one.outcome == "differs"})
    return f"{same} identical, {other} different"


def from_folder(results: Path) -> Iterator[tuple[str, Callable[[], Verification]]]:
    """Yield the name of each verification of a results folder (or its folder `records`), and a function to read it."""
    folder = (results.parent if results.name == "records" else results) / "verifications"
    for path in sorted(folder.glob("*.json")):
        yield str(path), partial(read, path)


def readable(results: Path) -> Iterator[Verification]:
    """Yield the intact verifications of a results folder."""
    for _, load in from_folder(results):
        with contextlib.suppress(CorruptFile):
            yield load()
