"""A cell from start to record: rounds with checkpoints between them, scores, and outcome."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from fedspan.benchmark.errors import CorruptFile, Diverged, Incompatible, UserError
from fedspan.benchmark.records.atomic import set_aside
from fedspan.benchmark.records.model import Count, Number, Percent, Record
from fedspan.benchmark.records.provenance import provenance
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.running.signals import Stopped
from fedspan.benchmark.spec.cell import SCHEMA, Cell
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.training.diagnostics import for_figures
from fedspan.benchmark.training.process import device_of, numerics_of, set_up_process
from fedspan.benchmark.training.run import Run
from fedspan.benchmark.training.saving import keep_trained, resume, save, take_trained
from fedspan.benchmark.training.scoring import score_stages
from fedspan.benchmark.training.traffic import classifier_cost
from fedspan.benchmark.training.workers.spread import start_workers, stop_workers

log = logging.getLogger("fedspan")


@dataclass
class CellProgress:
    """Progress of a running cell; before the first client only label and rounds are known."""

    label: str = ""
    round: Count = 0
    rounds: Number = 1
    client: Count = 0
    clients: Count = 0
    accuracy: Percent | None = None


Watch = Callable[[CellProgress], object]  # if true after a round: save and stop, to resume later


@dataclass
class Outcome:
    """Outcome of a cell, before it becomes a record."""

    status: str = "done"
    reason: str | None = None
    scores: dict[str, Any] = field(default_factory=dict)
    spectra: dict[str, Any] = field(default_factory=dict)
    diagnostics: dict[str, Any] = field(default_factory=dict)


def run_cell(
    cell: Cell,
    how: How,
    watch: Watch = lambda progress: None,
    beside: Callable[[], int] | None = None,
    share: Callable[[Run], int] = lambda run: 1,
) -> Record:
    """Run a cell, write its record and return it; a cell that has a record is not run again.

    Before each write, `beside()` returns the largest number of other cells that this machine computed at
    once; it raises if this process has lost the cell. Before each round, `share(run)` returns the number of workers.

    An interrupted cell resumes from its checkpoint, or starts again if the checkpoint leads to an invalid record. A
    diverged cell or an incompatible method gives a record with the reason. Raises `UserError` if the user must change
    something, `Stopped` if `watch` asks for it.
    """
    results = Results(how.results)
    if (known := results.read(cell.key)) is not None:
        return known
    _make_ready(cell, how, results)
    outcome, run = Outcome(), None
    try:
        run = Run(cell, how)
        _ = run.privacy  # fail before training if it is too weak or unknown
        _train(run, results, watch, beside, share)
        outcome.scores = score_stages(run)
        outcome.spectra, outcome.diagnostics = dict(run.measured.get("spectra", {})), for_figures(run.measured)
    except Incompatible as reason:
        outcome = Outcome("skipped", str(reason))
    except Diverged as reason:
        outcome = Outcome("diverged", str(reason))
    finally:
        if run is not None:
            stop_workers(run)
    record = make_record(cell, how, outcome, run)
    if beside is not None:
        record["provenance"]["cells_beside"] = max(beside(), run.cells_beside if run else 0)
    if (collected := results.read(cell.key)) is not None:
        log.warning("%s appeared while its cell was being computed; keeping it", results.path(cell.key))
        return collected
    try:
        results.write(record)
    except CorruptFile as error:
        if run is None or run.began_with is None:
            raise
        _set_aside(run.began_with, error, results)
        return run_cell(cell, how, watch, beside, share)
    _warn_of_idle_fleet(record)
    return record


def _make_ready(cell: Cell, how: How, results: Results) -> None:
    """Check that the record can be written, and set this process up as the cell needs it."""
    results.check_free(cell.key)
    results.check_writable()
    set_up_process(how)
    if (device := device_of(how.device)).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    provenance(cell)  # read once, before training: code edited meanwhile is not what trains


def _train(
    run: Run, results: Results, watch: Watch, beside: Callable[[], int] | None, share: Callable[[Run], int]
) -> None:
    """Train a run to its last round, starting from its checkpoint, another cell's model, or scratch."""

    def keep(write: Callable[[Run, Path], None], path: Path) -> None:
        if beside is not None:
            run.cells_beside = max(run.cells_beside, beside())
        _keep(write, run, path)

    path, trained = results.checkpoint(run.cell.key), results.trained_model_path(run.cell.train_key)
    resumed = _start_from(resume, run, path, results)
    if not resumed and run.cell.train_key != run.cell.key and _start_from(take_trained, run, trained, results):
        return
    progress = CellProgress(run.cell.label, run.state.round, run.cell.protocol.rounds)
    saved, pause = time.monotonic(), run.how.checkpoint_seconds
    while not run.finished:
        progress.client, progress.clients = 0, len(run.participants())

        def tick() -> None:
            progress.client += 1
            watch(progress)

        start_workers(run, share(run))
        run.advance(tick)
        progress.round = run.state.round
        progress.accuracy = run.curve["accuracy"][-1] if run.curve["accuracy"] else None
        if (began := time.monotonic()) - saved >= pause:
            with run.meter.phase("checkpoint"):
                keep(save, path)
            saved = time.monotonic()
            if pause > 0:  # large checkpoints take at most a tenth of the time
                pause = max(run.how.checkpoint_seconds, 9 * (saved - began))
        if watch(progress) and not run.finished:
            keep(save, path)
            raise Stopped
    keep(keep_trained, trained)
    results.prune_trained()


def _start_from(take: Callable[[Run, Path], bool], run: Run, path: Path, results: Results) -> bool:
    """Return whether the run could `take` its state from `path`; set a damaged file aside."""
    try:
        taken = take(run, path)
    except CorruptFile as error:
        _set_aside(path, error, results)
        return False
    run.began_with = path if taken else None
    return taken


def _set_aside(path: Path, error: CorruptFile, results: Results) -> None:
    """Set aside a file from which a cell cannot resume."""
    if path.exists():  # another worker may have removed it
        now = set_aside(path, results.aside)
        log.warning("%s is damaged: %s; it was moved to %s and the cell starts again", path, error, now)


def _keep(write: Callable[[Run, Path], None], run: Run, path: Path) -> None:
    """Write the run to `path`; if that fails, warn and continue."""
    try:
        write(run, path)
    except UserError as error:
        log.warning("no checkpoint after round %d: %s", run.state.round, error)


def make_record(cell: Cell, how: How, outcome: Outcome, run: Run | None) -> Record:
    """Return the record of an outcome; `run` is None if the cell never started."""
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "key": cell.key,
        "spec": cell.what,
        "status": outcome.status,
        "reason": outcome.reason,
        "scores": outcome.scores,
        "curve": {},
        "compute": {},
        "provenance": {},
    }
    if run is not None:
        run.note_peak()
        record["curve"] = {name: [_plain(value) for value in values] for name, values in run.curve.items()}
        record["compute"] = {
            **run.meter.as_dict(),
            "seconds_at_round": run.seconds_at_round,
            "bytes_at_round": run.bytes_at_round,
            "classifier": classifier_cost(run.trainer, run.state),
        }
        if cell.fleet.acts:
            record["fleet"] = run.meter.of_fleet(run.simulated_at_round)
        record["digests"] = {"rounds": run.round_digests, "stages": run.stage_digests}
    record["provenance"] = provenance(cell, **_machine(cell, how, run))
    if outcome.spectra:
        record["spectra"] = outcome.spectra
    if outcome.diagnostics:
        record["diagnostics"] = outcome.diagnostics
    return cast(Record, record)  # validated before it is written


def _warn_of_idle_fleet(record: Record) -> None:
    """Warn if a fleet changed no visit and simulated no time, such as skipping epochs where there is only one."""
    fleet = record.get("fleet")
    if record["status"] == "done" and fleet and not (fleet["lost"] or fleet["cut"] or "seconds" in fleet):
        name, visits = record["spec"]["fleet"]["name"], fleet["visits"]
        log.warning("fleet=%s changed none of %d visits and so had no effect", name, visits)


def _machine(cell: Cell, how: How, run: Run | None) -> dict[str, Any]:
    """Return where, how and from which data a cell was computed."""
    found: dict[str, Any] = {
        "device": how.device,
        "executor": how.executor,
        "threads": how.threads,
        "numerics": run.numerics if run else numerics_of(cell, how),
        "command": how.command,
    }
    if run is not None:
        if run.device.type == "cuda":
            found["gpu"] = torch.cuda.get_device_name(run.device)
        found |= run.digests
        if run.workers > 1:
            found["workers"] = run.workers
        if run.trained_by is not None:
            found["trained_by"] = run.trained_by
    return found


def _plain(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else value
