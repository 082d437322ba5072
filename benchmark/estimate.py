"""What missing cells will cost: from records of like cells, else from a short calibration on this machine."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console

from benchmark.board import Planned
from benchmark.cell import Cell
from benchmark.config import make_how
from benchmark.diagnostics import Diagnostics
from benchmark.errors import Incompatible, UserError
from benchmark.record import Record, Results
from benchmark.rounds import Run, round_half_up, settle
from benchmark.task import Partition

BATCHES = 4  # of training images in a calibration


@dataclass(frozen=True)
class Estimate:
    """Seconds of one core, and what the number rests on."""

    seconds: float
    basis: str


def family(what: dict[str, object]) -> str:
    """Return what cells share that cost the same: everything but the seed and the partition."""
    return json.dumps({k: v for k, v in what.items() if k not in ("seed", "partition")}, sort_keys=True)


def estimate(missing: Sequence[Planned], results: Results, console: Console) -> Estimate:
    """Return the expected cost of all `missing` cells together."""
    measured: dict[str, list[float]] = {}
    for record in results.all():
        if record["status"] == "done":
            measured.setdefault(family(record["spec"]), []).append(_seconds(record))
    calibrated: dict[str, float] = {}
    known: set[str] = set()
    total = 0.0
    for planned in missing:
        name = family(planned.cell.what)
        if name in measured:
            known.add(name)
            total += sum(measured[name]) / len(measured[name])
            continue
        if name not in calibrated:
            console.print(f"calibrating {planned.cell.label}", markup=False)
            calibrated[name] = calibrate(planned)
        total += calibrated[name]
    basis = [f"{len(known)} kinds of cells from records"] if known else []
    basis += [f"{len(calibrated)} kinds calibrated now"] if calibrated else []
    return Estimate(total, ", ".join(basis))


def _seconds(record: Record) -> float:
    return float(record["compute"]["seconds"]["total"])


def calibrate(planned: Planned) -> float:
    """Return the expected seconds of a cell from a few real training and evaluation batches; 0 if impossible.

    The first round warms up (and counts FLOPs), the second is measured.
    """
    cell, how = planned.cell, make_how(planned.config)
    settle(how)
    whole = cell.dataset.prepare(how.data)
    try:
        Run(_probe(cell), how)  # first imports
        run = Run(_probe(cell), how)
    except Incompatible:
        return 0.0
    prepare = run.meter.seconds["prepare"]
    run.advance()
    before, trained = dict(run.meter.seconds), run.meter.images
    run.advance()
    local, evaluated = (run.meter.seconds[phase] - before[phase] for phase in ("local", "evaluate"))
    if run.meter.images == trained:
        raise UserError("the calibration trained on no image; raise dataset.limit")
    per_image = local / (run.meter.images - trained)
    images = cell.protocol.rounds * cell.protocol.local_epochs * len(whole.train)
    chosen = max(1, round_half_up(cell.clients * cell.participation)) / cell.clients
    evaluations = -(-cell.protocol.rounds // cell.protocol.eval_every) + 1
    per_evaluation = evaluated * len(whole.test) / len(run.trainer.data.test)
    return prepare + images * chosen * per_image + evaluations * per_evaluation


@dataclass(frozen=True)
class _Whole(Partition):
    """All images to one client."""

    name = "whole"

    def split(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Sequence[np.ndarray]:
        return [np.arange(len(labels))]


def _probe(cell: Cell) -> Cell:
    """Return the same training on a few images of one client."""
    images = max(BATCHES * cell.protocol.batch_size, 10)
    return dataclasses.replace(
        cell,
        dataset=dataclasses.replace(cell.dataset, limit=min(images, cell.dataset.limit or images)),
        partition=_Whole(),
        clients=1,
        participation=1.0,
        protocol=dataclasses.replace(cell.protocol, rounds=2, local_epochs=1, eval_every=1),
        diagnostics=Diagnostics(),
    )
