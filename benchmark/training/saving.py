"""Runs on disk: checkpoints to resume from, and trained models shared by cells.

A checkpoint holds the whole state after a round, and in `made_by` everything besides data that its bits depend on. A
cell resumes from it only if the sources of its plugins, torch, executor, threads, device and numerics are the same;
otherwise it starts again. A trained model omits state needed only by further rounds, and its `origin` holds the same
information as `made_by`: a cell that reuses the model must match all of it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec

from fedspan.benchmark.errors import CorruptFile
from fedspan.benchmark.records import checkpoint
from fedspan.benchmark.records.model import Count, Number
from fedspan.benchmark.records.provenance import difference, origin
from fedspan.benchmark.records.sources import uncommitted, uncommitted_engine_files
from fedspan.benchmark.records.validation import validate
from fedspan.benchmark.spec.cell import SCHEMA
from fedspan.benchmark.training.diagnostics import for_figures
from fedspan.benchmark.training.meter import Meter
from fedspan.benchmark.training.run import Run
from fedspan.benchmark.training.state import State
from fedspan.benchmark.tree import Tree

log = logging.getLogger("fedspan")


def save(run: Run, path: Path) -> None:
    """Write a checkpoint of the cell after a complete round."""
    _write(run, path, run.cell.key, made_by=_made_by(run))


def resume(run: Run, path: Path) -> bool:
    """Resume from the cell's checkpoint, if one exists that this code would reproduce; return whether it did.

    Raises `CorruptFile` if the file cannot be trusted.
    """
    found = checkpoint.load(path, run.cell.key)
    if found is None or found[1].get("origin") is not None:
        return False
    made_by: dict[str, Any] = found[1].get("made_by") or {}  # absent from files of earlier versions
    if made_by:
        _check_origin(made_by)
    if said := _unlike(_made_by(run), made_by) if made_by else "an earlier version":
        log.warning("the first rounds were computed with %s, so the cell starts again: %s", said, path)
        return False
    _take_over(run, run.state, *found)
    run.of_one_origin &= _origin(run).items() <= made_by.items()
    return True


def keep_trained(run: Run, path: Path) -> None:
    """Write the trained model for cells that differ only in the stages after training.

    Skip it if another version of the engine computed the first rounds: nothing could reproduce the model.
    """
    run.state = run.state.models_only()
    if run.of_one_origin:
        _write(run, path, run.cell.train_key, origin=_origin(run), lasting=_trees(run), trained_by=run.cell.key)


def take_trained(run: Run, path: Path) -> bool:
    """Start from a trained model, if one exists that this code on this device would reproduce; return whether it did.

    A file made for stages that need other component trees is left alone. Raises `CorruptFile` if the file cannot be
    trusted.
    """
    found = checkpoint.load(path, run.cell.train_key)
    if found is None or found[1].get("origin") != _origin(run) or found[1].get("lasting") != _trees(run):
        return False
    _take_over(run, run.state.models_only(), *found)
    with contextlib.suppress(OSError):  # owned by another user, or pruned in the meantime
        os.utime(path)  # mark as recently used
    return True


def _trees(run: Run) -> list[str]:
    """Return the components whose trees the stages after training need."""
    return sorted(run.state.lasting)


def _origin(run: Run) -> dict[str, Any]:
    return origin(run.cell.training, run.how, run.device, run.numerics)


def _made_by(run: Run) -> dict[str, Any]:
    return _origin(run) | {"uncommitted": uncommitted(run.cell)}


class Versions(TypedDict):
    """Version whose change makes a cell start again."""

    torch: str


class MadeBy(TypedDict):
    """The part of `made_by` that `_unlike` reads by name."""

    device: str
    versions: Versions
    engine: str
    sources: dict[str, str]
    uncommitted: list[str] | None


def _check_origin(made_by: Any) -> None:
    try:
        msgspec.convert(made_by, MadeBy)
    except msgspec.ValidationError as error:
        raise CorruptFile(f"its made_by is incomplete: {error}") from error


def _unlike(here: dict[str, Any], made_by: dict[str, Any]) -> str:
    """Return why a run cannot resume from a checkpoint; empty if it can.

    Tests pin the numbers of committed engines; an engine with uncommitted changes equals no other.
    """
    if made_by.get("engine") != here["engine"] and (
        files := uncommitted_engine_files(here) + uncommitted_engine_files(made_by)
    ):
        return f"another engine: uncommitted changes of {', '.join(dict.fromkeys(files))}"
    return difference(_constant_origin(here), _constant_origin(made_by))


def _constant_origin(of: dict[str, Any]) -> dict[str, Any]:
    """Return the part of an origin that all rounds of a cell must share; `_unlike` checks the engine.

    The processor that feeds a GPU is left out.
    """
    sources = {f"source of {plugin}": digest for plugin, digest in of["sources"].items()}
    names = ("device", "gpu", "executor", "threads", *(["numerics"] if of["device"] == "cpu" else []))
    same = {name: of[name] for name in names if name in of}
    return same | {"torch": of["versions"]["torch"]} | sources


def _write(run: Run, path: Path, key: str, **more: Any) -> None:
    run.note_peak()
    tensors = run.state.pack()
    meta = {
        "round": run.state.round,
        "curve": run.curve,
        "seconds_at_round": run.seconds_at_round,
        "round_digests": run.round_digests,
        "bytes_at_round": run.bytes_at_round,
        "simulated_at_round": run.simulated_at_round,
        "meter": vars(run.meter),
        "workers": run.workers,
        "cells_beside": run.cells_beside,
        "of_one_origin": run.of_one_origin,
        "digests": run.digests,
        "measured": run.measured,
        **more,
    }
    checkpoint.save(path, key, tensors, meta)


class Saved(TypedDict):
    """Metadata of a file besides its tensors; fields marked `NotRequired` are absent from files of earlier versions."""

    round: Number
    curve: dict[str, list[Any]]
    seconds_at_round: list[float]
    bytes_at_round: list[int]
    simulated_at_round: NotRequired[list[float]]
    round_digests: dict[str, str]
    meter: Meter
    digests: dict[str, str | None]
    measured: dict[str, Any]
    trained_by: NotRequired[str | None]
    workers: NotRequired[Number]
    cells_beside: NotRequired[Count]
    of_one_origin: NotRequired[bool]


def _take_over(run: Run, state: State, tensors: Tree, meta: dict[str, Any]) -> None:
    """Load a file into the run, its tensors into `state`; change nothing if it raises `CorruptFile`."""
    try:
        saved = msgspec.convert(meta, Saved)
        curve: Any = {name: saved["curve"][name] for name in run.curve}
        _check(run, saved)
        state.unpack(tensors, saved["round"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFile(f"it is incomplete: {error}") from error
    run.state, run.measured, run.curve = state, saved["measured"], curve
    run.seconds_at_round, run.bytes_at_round = saved["seconds_at_round"], saved["bytes_at_round"]
    run.simulated_at_round = saved.get("simulated_at_round", [])
    run.round_digests = saved["round_digests"]
    run.trained_by = saved.get("trained_by")
    run.workers = max(run.workers, saved.get("workers", 1))
    run.cells_beside = max(run.cells_beside, saved.get("cells_beside", 0))
    run.of_one_origin = saved.get("of_one_origin", True)
    again, busy = sum(run.meter.seconds.values()), run.meter.processor_seconds
    run.meter.take_over(saved["meter"])
    run.meter.processor_seconds += busy
    run.meter.seconds["prepare"] = run.meter.seconds.get("prepare", 0.0) + again


def _check(run: Run, saved: Saved) -> None:
    """Raise `CorruptFile` unless the file belongs to this run and its rounds so far would make a valid record.

    A digest only detects damage after writing, not whether the run can resume from the contents.
    """
    cell, measured, protocol = run.cell, saved["measured"], run.cell.protocol
    if saved["digests"] != run.digests:
        raise CorruptFile("it was made from other data or another partition")
    ended = range(1, saved["round"] + 1)
    if saved["round"] > protocol.rounds or saved["curve"]["round"] != [
        when for when in ended if when == protocol.rounds or when % protocol.eval_every == 0
    ]:
        raise CorruptFile("its rounds are not those of the cell")
    if saved["round"] == protocol.rounds and "train" not in saved["meter"].flops:
        raise CorruptFile("it counts no training")
    record: dict[str, Any] = {
        "schema": SCHEMA, "key": cell.key, "spec": cell.what, "status": "skipped", "reason": None,
        "scores": {"alignment": measured["alignment"]} if "alignment" in measured else {},
        "curve": saved["curve"],
        "compute": {
            **saved["meter"].as_dict(),
            "seconds_at_round": saved["seconds_at_round"],
            "bytes_at_round": saved["bytes_at_round"],
        },
        **({"fleet": saved["meter"].of_fleet(saved.get("simulated_at_round", []))} if cell.fleet.acts else {}),
        "provenance": {"trained_by": saved["trained_by"]} if saved.get("trained_by") else {},
        "digests": {"rounds": saved["round_digests"]},
        "spectra": measured.get("spectra", {}),
        "diagnostics": for_figures(measured),
    }  # fmt: skip
    validate(record, cell.key)
