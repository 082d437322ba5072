"""Repetition of a record's cell in its own process and folder, and comparison of the two records."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from fedspan.benchmark import numerics
from fedspan.benchmark.data.array_cache import AFRESH
from fedspan.benchmark.errors import UserError, is_number
from fedspan.benchmark.names import counted_as
from fedspan.benchmark.places import interpreter, usable_cores
from fedspan.benchmark.records.exchange import counted
from fedspan.benchmark.records.model import Record, trained_accuracy
from fedspan.benchmark.records.record import dotted, leaves_of, paired
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.sources import changed
from fedspan.benchmark.spec.overrides import override_text
from fedspan.benchmark.spec.plan import PlannedCell


@dataclass(frozen=True)
class FirstDifference:
    """The first value in which a repetition differs: see `fedspan.benchmark.records.verification.Verification`."""

    where: str
    round: int | None
    points: float | None
    text: str


def compared_by(record: Record) -> Literal["digests", "numbers"]:
    """Return what a repetition is compared by; older records have numbers but no digests of weights."""
    return "digests" if record.get("digests") else "numbers"


def compare(record: Record, again: Record) -> FirstDifference | None:
    """Return the first difference between a record and its repetition, in the order in which a cell computes."""
    points = _points(record, again)
    if record["status"] != again["status"]:
        reason = f": {again['reason']}" if again["reason"] else ""
        return FirstDifference(
            "status", None, points, f"its status is {record['status']}, recomputed {again['status']}{reason}"
        )
    for where, there, here in _data(record, again):
        if there != here:
            return FirstDifference(where, None, points, f"it differs in {_mismatch(where, there, here)}{_by(points)}")
    for when, where, there, here in _rounds(record, again):
        if there != here:
            text = f"it differs from round {when} on"
            if not where.startswith("digests"):
                text += f" ({_mismatch(where, there, here)})"
            return FirstDifference(where, when, points, text + _by(points))
    for where, there, here in _ends(record, again):
        if there != here:
            said = where if where.startswith("digests") else _mismatch(where, there, here)
            same = " although its digests match" if where.startswith("scores") and record.get("digests") else ""
            return FirstDifference(where, None, points, f"it differs in {said}{same}{_by(points)}")
    return None


def _data(record: Record, again: Record) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, recorded value, repeated value) of the digests of the data, which older records may lack."""
    there, here = record["provenance"], again["provenance"]
    for name in ("dataset_digest", "partition_digest"):
        if there.get(name) is not None and here.get(name) is not None:
            yield f"provenance.{name}", there[name], here[name]


def _rounds(record: Record, again: Record) -> Iterator[tuple[int, str, Any, Any]]:
    """Yield (round, name, recorded value, repeated value) for all values of the evaluated rounds, in order."""
    values = [{**_digests_of_rounds(one), **_curve_of(one)} for one in (record, again)]
    names = {name for one in values for name in one if record.get("digests") or not name[1].startswith("digests")}
    for when, where in sorted(names):
        yield when, where, values[0].get((when, where)), values[1].get((when, where))


def _digests_of_rounds(record: Record) -> dict[tuple[int, str], Any]:
    rounds = record.get("digests", {}).get("rounds", {})
    return {(int(when), f"digests.rounds.{when}"): digest for when, digest in rounds.items()}


def _curve_of(record: Record) -> dict[tuple[int, str], Any]:
    rounds = record["curve"].get("round", [])
    return {
        (when, dotted(steps)): value
        for steps, values in leaves_of(record, "curve").items()
        if steps != ("curve", "round")
        for when, value in zip(rounds, values, strict=True)
    }


def _ends(record: Record, again: Record) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, recorded value, repeated value) after the rounds: stages, scores, fleet, spectra, counted cost."""
    if record["status"] == "diverged":
        yield "reason", record["reason"], again["reason"]
    fields: tuple[str, ...] = ("scores", "fleet", "spectra", "diagnostics")
    if record.get("digests"):
        fields = ("digests", *fields)
    for where, there, here in (*paired(record, again, *fields), *counted(record, again)):
        if where[:2] != ("digests", "rounds"):
            yield dotted(where), there, here


def _mismatch(where: str, there: Any, here: Any) -> str:
    def short(value: Any) -> str:
        return f"{value:.10g}" if is_number(value) else "absent" if value is None else str(value)[:40]

    return f"{where}: {short(there)} in the record, {short(here)} recomputed"


def _by(points: float | None) -> str:
    return "" if points is None else f"; final accuracy {points:+.2f} points"


def _points(record: Record, again: Record) -> float | None:
    there, here = (trained_accuracy(one) for one in (record, again))
    return None if there is None or here is None else here - there


def incomparable(record: Record, again: Record) -> str:
    """Return why a differing repetition proves nothing against its record; empty if it counts.

    Another engine is no reason, because every engine must reproduce the bits; nor are other images, because the record
    names its own.
    """
    if edited := changed(record["provenance"].get("sources"), again["provenance"]["sources"]):
        return f"the code of {', '.join(edited)} is not the record's"
    if otherwise := differing_settings(record, again):
        return f"the record was not made with {', '.join(otherwise)}, which changes the rounding"
    if elsewhere := _other_rounding(record, again):
        return f"the record was made with {elsewhere}, which may round differently"
    return ""


def differing_settings(record: Record, again: Record) -> list[str]:
    """Return the settings that change the rounding and differ from the record's, as ``name=value`` of the repetition.

    All CUDA devices count as equal.
    """
    there, here = record["provenance"], again["provenance"]
    made = {"numerics": numerics.NATIVE, **there}  # the only kind when older records were made
    return [
        f"{name}={here[name]}"
        for name in ("device", "executor", "threads", "numerics")
        if name in made and str(made[name]).split(":")[0] != str(here[name]).split(":")[0]
    ]


def _other_rounding(record: Record, again: Record) -> str:
    """Return what made the record but not its repetition and may round differently; empty if nothing.

    Any other version of torch may, and with native numerics any other kind of processor or GPU.
    """
    there, here = record["provenance"], again["provenance"]
    versions = there.get("versions", {}), here["versions"]
    if len(torches := {one.get("torch") for one in versions}) > 1 and None not in torches:
        return f"torch {versions[0]['torch']}"
    if here["numerics"] == numerics.NATIVE:
        made, repeated = (one.get("gpu") or one.get("processor") for one in (there, here))
        return f"native numerics on {made}" if made and made != repeated else ""
    return ""


def machines(record: Record, again: Record) -> Iterator[str]:
    """Yield one line per difference in machine, versions or sources between a record and its repetition."""
    there, here = record["provenance"], again["provenance"]
    for name in ("numerics", "processor", "gpu", "device", "executor", "threads"):
        if there.get(name) != here.get(name):
            yield f"{name}: {there.get(name, 'unknown')} in the record, {here.get(name, 'unknown')} here"
    known = there.get("versions", {})
    other = [
        f"{name} {known.get(name, 'unknown')} in the record, {version} here"
        for name, version in here["versions"].items()
        if known.get(name) != version
    ]
    if other:
        yield f"versions: {'; '.join(other)}"
    edited = changed(there.get("sources"), here["sources"])
    if edited is None:
        yield "sources: the record has no digests of them that compare with today's"
    elif edited:
        yield f"sources: {', '.join(edited)} differ"
    if edited is not None and there.get("engine") != here.get("engine"):
        yield "sources: the engine differs"
    if uncommitted := here.get("uncommitted"):
        yield f"uncommitted here: {', '.join(uncommitted)}"


def missing_gpu(record: Record, how: Mapping[str, Any]) -> str:
    """Return why no device here can repeat a record as it was made; empty if one can, or if `how` sets the device."""
    made = record["provenance"]
    if "device" in how or not made.get("device", "cpu").startswith("cuda") or torch.cuda.is_available():
        return ""
    return (
        f"it was made on {made.get('gpu', 'a GPU')}, but torch sees no CUDA device here; repeat it on a machine with "
        "one (device=cpu executor=loop computes it here, rounded differently)"
    )


@dataclass
class Repetition:
    """A cell recomputed in `scratch`; the settings `how` replace those of the record."""

    record: Record
    planned: PlannedCell
    scratch: Path
    how: Mapping[str, Any] = field(default_factory=dict)
    _process: subprocess.Popen[str] | None = None
    _cancelled: bool = False

    @property
    def results(self) -> Results:
        """The results folder of this repetition alone, without trained models or checkpoints."""
        return Results(self.scratch / self.planned.cell.key)

    def settings(self) -> dict[str, Any]:
        """Return all settings of the cell and of how it runs; raise `UserError` if this machine cannot do so."""
        if lacking := missing_gpu(self.record, self.how):
            raise UserError(lacking)
        made = self.record["provenance"]
        recorded = {
            "device": made.get("device", "").partition(":")[0] or None,  # any CUDA device is like any other
            "executor": made.get("executor"),
            "threads": made.get("threads"),
            "numerics": made.get("numerics", numerics.NATIVE),  # the only kind when older records were made
        }
        how: dict[str, Any] = {name: value for name, value in recorded.items() if value is not None} | dict(self.how)
        threads, cores = how.get("threads", 1), usable_cores()
        if not isinstance(threads, int) or threads > cores:
            raise UserError(
                f"it took {threads} threads, this process may use {counted_as(cores, 'core')}; try threads={cores}"
            )
        own = {"paths.results": str(self.results.root), "tracking": False}
        return {**self.planned.overrides, **how, **own}

    def run(self) -> Record:
        """Recompute the cell and return its record; raise `UserError` with the reason if there is none."""
        self.results.check_writable()
        words = [override_text(name, value) for name, value in self.settings().items()]
        command = [*interpreter(), "-m", "fedspan", "run", *words]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            errors="replace", start_new_session=True, env=os.environ | {AFRESH: "1"},
        )  # fmt: skip
        if self._cancelled:  # cancelled before the process started
            self.cancel()
        _, said = self._process.communicate()
        key = self.planned.cell.key
        found = self.results.read(key) or self.results.failure(key)
        if found is None or found["status"] == "failed":
            raise UserError(str(found["reason"]) if found else end_of(self._process.returncode, said))
        return found

    def cancel(self) -> None:
        """End the computation at once."""
        self._cancelled = True
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def clear(self) -> None:
        """Remove the results folder."""
        shutil.rmtree(self.results.root, ignore_errors=True)


def end_of(status: int, said: str) -> str:
    """Return why a command ended without an outcome: its complaint, unless it was killed before it could make one."""
    if status < 0:
        return f"its process was killed (signal {-status}), possibly out of memory"
    lines = said.splitlines()
    told = [line for line in lines if line.startswith("fedspan: ")]
    if told and "Traceback (most recent call last):" not in lines:
        return told[-1].removeprefix("fedspan: ")
    return f"its process ended with {status}" + (f": {lines[-1]}" if lines else "")
