"""``fedspan verify``: recomputes records on this machine, compares them, and keeps the outcomes."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import difflib
import hashlib
import os
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedspan.benchmark.errors import CorruptFile, UserError, did_you_mean
from fedspan.benchmark.fields import LARGEST_INT, from_values
from fedspan.benchmark.patience import doing
from fedspan.benchmark.records import exchange
from fedspan.benchmark.records.model import Record
from fedspan.benchmark.records.provenance import instructions, processor_name
from fedspan.benchmark.records.record import digest_of
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.selection import cells_of
from fedspan.benchmark.records.verification import RecordSample, Verification
from fedspan.benchmark.registry import how_settings
from fedspan.benchmark.running.cell_run import CellProgress
from fedspan.benchmark.running.progress import read_as, where
from fedspan.benchmark.running.repetition import (
    FirstDifference,
    Repetition,
    compare,
    compared_by,
    incomparable,
    machines,
    missing_gpu,
)
from fedspan.benchmark.running.signals import until_stopped
from fedspan.benchmark.spec.compose import resolve
from fedspan.benchmark.spec.overrides import axes_of, single
from fedspan.benchmark.spec.rebuild import rebuild
from fedspan.benchmark.spec.settings import How

HERE = (
    "device",
    "executor",
    "threads",
    "numerics",
    "checkpoint_seconds",
    "timeout",
    "paths",
    "plugins",
)  # settings of how a cell runs
POLL_SECONDS = 0.5
NEAR = 0.9  # similarity of a mistyped key: keys are digests, which share a few digits by chance


@dataclass(frozen=True)
class Request:
    """A parsed command line: keys or a board, how many of its records, and how to compute them."""

    keys: tuple[str, ...]
    cells: dict[str, list[Any]]
    how: dict[str, Any]
    config: dict[str, Any]
    sample: int | None = None
    sample_seed: int | None = None

    @classmethod
    def of(cls, words: Sequence[str]) -> Request:
        """Return the request of a command line; raise `UserError` if it is invalid."""
        axes = axes_of(word for word in words if "=" in word)
        own = single({name: axes.pop(name) for name in ("sample", "sample_seed") if name in axes})
        hows = how_settings()
        how = single({name: values for name, values in axes.items() if name.split(".")[0] in HERE or name in hows})
        known = resolve({name: value for name, value in how.items() if name not in hows})
        workers = single({name: values for name, values in axes.items() if name == "workers"})
        cells = {name: values for name, values in axes.items() if name not in (*how, *workers)}
        keys = tuple(word for word in words if "=" not in word)
        if option := next((key for key in keys if key.startswith("-")), None):
            raise UserError(f"unknown option '{option}'; write: fedspan verify [KEY ... | board=NAME] [sample=N]")
        if cells and "board" not in cells:
            near = did_you_mean(next(iter(cells)), ["board", "sample", "sample_seed", "workers", *HERE, *hows])
            raise UserError(f"records are computed as they were, so '{next(iter(cells))}' cannot be set{near}")
        if cells and keys:
            raise UserError("name keys or a board, not both")
        for name, least in (("sample", 1), ("sample_seed", 0)):
            if name in own and (type(own[name]) is not int or own[name] < least):
                raise UserError(f"{name} must be a whole number of at least {least}, got {own[name]!r}")
            if own.get(name, 0) > LARGEST_INT:
                raise UserError(f"{name} must be at most {LARGEST_INT}, got {own[name]}")
        if "sample_seed" in own and "sample" not in own:
            raise UserError("sample_seed draws a sample; add sample=N")
        return cls(keys=keys, cells=cells, how=how, config={**known, **workers}, **own)

    def records(self, results: Results) -> list[str]:
        """Return the keys of the requested records, in order; raise `UserError` if there are none."""
        there = sorted(path.stem for path in exchange.record_files([results.root])) if results.records.is_dir() else []
        if not there:
            raise UserError(f"{results.records} holds no record; name another folder with paths.results=DIR")
        if self.keys:
            return list(dict.fromkeys(_whole(key, there, results.records) for key in self.keys))
        if not self.cells:
            if self.sample is None:
                said = "fedspan verify KEY ..., board=NAME, or sample=N"
                raise UserError(f"name the records to repeat: {said} of all {len(there):,} in {results.records}")
            return there
        planned = [cell.cell.key for cell in cells_of(self.cells, results.read)]
        if not (found := [key for key in planned if key in set(there)]):
            raise UserError(f"{results.records} holds no record of the {len(planned)} cells of {self.among}")
        return found

    @property
    def among(self) -> str:
        """A short description of the set of records."""
        if not self.cells:
            return "those named" if self.keys else "the whole results folder"
        rest = "".join(f" {name}={','.join(map(str, v))}" for name, v in self.cells.items() if name != "board")
        return f"board {', '.join(map(str, self.cells['board']))}{rest}"


def _whole(beginning: str, keys: Sequence[str], folder: Path) -> str:
    """Return the only key with this beginning, or of this file; raise `UserError` if there is none or several."""
    if beginning.endswith(".json"):
        given = Path(beginning)
        if given.parent.name and os.path.realpath(given) != os.path.realpath(folder / given.name):
            raise UserError(f"{given} is not a record of {folder}; set paths.results to the folder above its records")
        beginning = given.stem
    found = [key for key in keys if key.startswith(beginning)]
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(found[:3]) + (", ..." if found[3:] else "")
        raise UserError(f"{len(found)} records begin with '{beginning}' ({some}); give more digits of the key")
    near = difflib.get_close_matches(beginning, [key[: len(beginning)] for key in keys], n=1, cutoff=NEAR)
    whole = next((key for key in keys if near and key.startswith(near[0])), None)
    raise UserError(f"no record '{beginning}' in {folder}" + (f"; did you mean '{whole}'?" if whole else ""))


def sampled(keys: Sequence[str], size: int, seed: int) -> list[str]:
    """Return `size` keys drawn by the seed: the same on every machine."""
    order = sorted(keys, key=lambda key: hashlib.sha256(f"{seed} {key}".encode()).hexdigest())
    return sorted(order[:size])


def repeatable(keys: Sequence[str], results: Results, how: Mapping[str, Any]) -> list[str]:
    """Return the keys of records that this machine can repeat: without a GPU, none made on one."""

    def known(key: str) -> Record | None:
        with contextlib.suppress(CorruptFile, exchange.NotInstalledHere):  # stays in the draw, and is reported later
            return results.read(key)
        return None

    return [key for key in keys if (record := known(key)) is None or not missing_gpu(record, how)]


def show(arguments: argparse.Namespace, kept_in: Path | None = None) -> int:
    """Recompute the requested records and compare them; return the exit status.

    `kept_in` is the folder to name as that of the outcomes, if their results folder is a temporary one.
    """
    request = Request.of(arguments.words)
    how = How.of(request.config)
    results = Results(how.results, sets_aside=False)
    with doing("choosing the records to repeat"):
        keys = request.records(results)
    console, sample = Console(soft_wrap=True, highlight=False, markup=False), None
    if request.sample is not None:
        seed = secrets.randbelow(10**6) if request.sample_seed is None else request.sample_seed
        here, among = repeatable(keys, results, request.how) or keys, request.among
        if left_out := len(keys) - len(here):
            among += f" but {left_out} made on a GPU"
        keys, sample = here, RecordSample(min(request.sample, len(here)), len(here), seed, among)
        keys = sampled(keys, sample.size, seed)
        console.print(f"sample: {sample}")
    verdicts = Verdicts(console, len(keys), results, sample)
    with _scratch() as scratch:
        todo = []
        for key in keys:
            if (repetition := verdicts.prepare(key, scratch, request.how)) is not None:
                todo.append(repetition)
        _run(todo, verdicts, min(How.of(request.config).cells_at_a_time, max(len(todo), 1)))
    return verdicts.end(kept_in or results.verifications)


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Yield a new folder that is removed at the end, after a signal too; raise `UserError` if it cannot be made."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="fedspan-verify-"))
    except OSError as error:
        raise UserError(
            f"cannot make a scratch folder in {tempfile.gettempdir()}: {error.strerror or error}; "
            "free space, or name another folder with TMPDIR"
        ) from error

    try:
        with until_stopped():
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(todo: Sequence[Repetition], verdicts: Verdicts, workers: int) -> None:
    """Recompute `workers` cells at a time, each in its own process; an interrupt ends them all."""
    with ThreadPoolExecutor(workers) as pool, verdicts.watching(todo):
        waiting = {pool.submit(repetition.run): repetition for repetition in todo}
        try:
            while waiting:
                done, _ = wait(waiting, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                for future in done:
                    repetition = waiting.pop(future)
                    try:
                        verdicts.judge(repetition, future.result())
                    except UserError as error:
                        verdicts.uncomputed(repetition, str(error))
                    repetition.clear()
                verdicts.look()
        finally:
            for future, repetition in waiting.items():
                future.cancel()
                repetition.cancel()


@dataclass
class Verdicts:
    """Outcomes of the records, printed one by one and kept in the results folder."""

    console: Console
    total: int
    results: Results
    sample: RecordSample | None
    counts: Counter[str] = field(default_factory=Counter)
    kept: int = 0  # verifications
    _live: Live | None = None
    _running: Sequence[Repetition] = ()

    def prepare(self, key: str, scratch: Path, how: Mapping[str, Any]) -> Repetition | None:
        """Return the repetition of a record; print the reason and return None if it cannot be repeated."""
        try:
            record = exchange.read(self.results.path(key))
        except exchange.NotInstalledHere as error:
            self._say("not computed", key, "", [str(error)])
            return None
        except CorruptFile as error:
            self._say("refused", key, "", [str(error)])
            return None
        try:
            planned = rebuild(record["spec"])
            fields = {
                f"{plugin.kind}.{one.name}"
                for plugin in (planned.cell.dataset, planned.cell.partition, planned.cell.model)
                for one in dataclasses.fields(plugin)
            }
            taken = {name: value for name, value in how.items() if name.split(".")[0] in HERE or name in fields}
            return Repetition(record, planned, scratch, taken)
        except (CorruptFile, UserError) as error:
            self._say("not computed", key, "", [str(error)])
            return None

    def judge(self, repetition: Repetition, again: Record) -> None:
        """Compare a record with its repetition; print and keep the outcome."""
        record, label = repetition.record, repetition.planned.cell.label
        difference = compare(record, again)
        lines = [] if record.get("digests") else ["it holds no digests of weights: compared by curve and scores"]
        if difference is not None:
            lines = [difference.text, *lines, *machines(record, again)]
        outcome = "identical" if difference is None else "differs"
        if difference is not None and (why := incomparable(record, again)):
            lines.append(f"not kept: {why}")
        else:
            try:
                verification_of(record, again, difference, self.sample).write(self.results.verifications)
                self.kept += 1
            except UserError as error:
                lines.append(f"not kept: {error}")
        self._say(outcome, record["key"], label, lines)

    def uncomputed(self, repetition: Repetition, reason: str) -> None:
        """Report that a cell could not be computed here; no verification is kept."""
        scratch = str(repetition.scratch)
        if scratch in reason:
            reason = f"the scratch folder {scratch} is full or read-only; free space, or name another with TMPDIR"
        self._say("not computed", repetition.record["key"], repetition.planned.cell.label, [reason])

    def _say(self, outcome: str, key: str, label: str, lines: Sequence[str]) -> None:
        self.counts[outcome] += 1
        number = self.counts.total()
        console = self._live.console if self._live else self.console
        console.print(f"[{number}/{self.total}] {outcome}  {key}  {label}".rstrip())
        for line in lines:
            console.print(f"    {line}")

    def end(self, kept_in: Path) -> int:
        """Print the number of records by outcome and the folder that keeps them; return the exit status."""
        outcomes = ("identical", "differs", "refused", "not computed")
        self.console.print(", ".join(f"{self.counts[name]} {name}" for name in outcomes if self.counts[name]))
        if self.kept:
            self.console.print(f"kept in {kept_in}")
        if self.counts["differs"] or self.counts["refused"]:
            return 1
        return 2 if self.counts["not computed"] else 0

    @contextlib.contextmanager
    def watching(self, todo: Sequence[Repetition]) -> Iterator[None]:
        """Show the running cells on a terminal until the block ends; elsewhere show verdicts only."""
        self._running = todo
        if not self.console.is_terminal:
            yield
            return
        with Live(self._table(), console=self.console, refresh_per_second=4, transient=True) as self._live:
            yield
        self._live = None

    def look(self) -> None:
        """Update the display."""
        if self._live is not None:
            self._live.update(self._table())

    def _table(self) -> Table:
        table = Table(box=None, show_header=False, padding=(0, 1))
        for repetition in self._running:
            key = repetition.planned.cell.key
            if status := read_as(repetition.results.status / f"{key}.json", CellProgress):
                table.add_row(key, Text(status.label), *where(status))
        return table


def verification_of(
    record: Record, again: Record, difference: FirstDifference | None, sample: RecordSample | None
) -> Verification:
    """Return the verification of a repetition."""
    made = again["provenance"]
    return from_values(
        Verification,
        {
            "key": record["key"],
            "record": digest_of(record),
            "outcome": "identical" if difference is None else "differs",
            "compared": compared_by(record),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "processor": processor_name(),
            "instructions": instructions(),
            "numerics": made["numerics"],
            "device": made.get("gpu") or made["device"],
            "versions": made["versions"],
            "sources": made["sources"],
            "engine": made["engine"],
            "where": difference.where if difference else "",
            "round": difference.round if difference else None,
            "points": difference.points if difference else None,
            "sample": dataclasses.asdict(sample) if sample else {},
        },
        "verification",
    )
