"""Boards and records for the tests of the report: made by hand, nothing is trained."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedspan.benchmark.records.model import Record, is_trial
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.report.report import Report
from fedspan.benchmark.spec.board import Board, Figure, Table
from fedspan.benchmark.spec.plan import PlannedCell, plan
from tests.helpers import whole

METHODS = [
    {"addons": []},
    {"addons": ["feddecorr"], "addon.feddecorr.form": "released"},
    {"addons": ["feddecorr"], "addon.feddecorr.form": "paper"},
]
SKEWS = [{"partition": "dirichlet", "partition.alpha": 0.05}, {"partition": "iid"}]
GRID = {"partition": SKEWS, "algorithm": ["fedavg", "fedprox"], "addons": METHODS, "seed": [0, 1, 2]}


def board(
    *grids: dict[str, Any], tables: Sequence[Table] = (Table(),), figures: Sequence[Figure] = (), **more: Any
) -> Board:
    fields = {"name": "example", "title": "Example", "description": "", "base": {}, "scales": {}} | more
    return Board(grid=grids or (GRID,), tables=tuple(tables), figures=tuple(figures), **fields)


def cells_of(made: Board) -> list[PlannedCell]:
    return plan(made.expand())


def record(planned: PlannedCell, accuracy: float | None = 90.0, **changes: Any) -> Record:
    """Return the record of a cell; keyword arguments replace its fields. Its curve ends with its accuracy."""
    cell = planned.cell
    rounds = cell.protocol.rounds
    if changes.get("curve"):
        accuracy = changes["curve"]["accuracy"][-1]
    made: Record = {
        "schema": cell.what["schema"],
        "key": cell.key,
        "spec": cell.what,
        "status": "done",
        "reason": None,
        "scores": {"trained": {"accuracy": accuracy, "loss": 0.5}, "best": {"accuracy": accuracy, "round": rounds}},
        "curve": {"round": [1, rounds], "accuracy": [10.0, accuracy], "loss": [2.0, 0.5], "train_loss": [2.0, 0.4]},
        "compute": {
            "seconds": {"local": 5.0, "total": 6.0},
            "flops": {"train": 2_000_000_000, "evaluate": 1},
            "bytes": {"up": 100, "down": 300, "up_per_client_round": 1000.0, "down_per_client_round": 3000.0},
            "memory_bytes": {"train": 500_000_000},
            "steps": rounds,
            "images": 10 * rounds,
        },
        "provenance": {
            "versions": {"python": "3.11.7", "torch": "2.15.0"},
            "git_commit": "0123abcd",
            "device": "cpu",
            "cells_beside": 0,
            "processor": "a processor",
            "dataset_digest": "d" * 64,
            "partition_digest": "e" * 64,
            "sources": {f"algorithm:{cell.algorithm.name}": "0a1b2c3d"},
            "command": f"fedspan run seed={cell.seed}",
        },
        "spectra": {"global": {"singular_values": [3.0, 1.0, 0.1, 0.0], "dimension": 4}},
    }
    return whole(made | changes)


def trial(planned: PlannedCell, accuracy: float = 90.0, **changes: Any) -> Record:
    """Return the record of a trial: like that of a result, but its scores are of held-out images."""
    result = record(planned, accuracy, **changes)
    scores = {"accuracy": accuracy, "loss": 0.5, "accuracy.trained": accuracy, "loss.trained": 0.5, "images": 100.0}
    return result | {"scores": {"validation": scores}}


def stopped(planned: PlannedCell, status: str, reason: str) -> Record:
    return record(planned, status=status, reason=reason, scores={}, curve={}, compute={}, spectra={})


def keep(results: Results, records: Sequence[Record]) -> None:
    for one in records:
        results.write(one if is_trial(one) else whole(one))


def results_of(folder: Path, records: Sequence[Record]) -> Results:
    results = Results(folder)
    keep(results, records)
    return results


def seeded(cells: Sequence[PlannedCell], spread: float = 1.0) -> list[Record]:
    """Return a record for every cell; no two cells of the grid have the same mean, later ones are better.

    Beside what all cells gain with the seed each scatters a little in its own way, without a change of its mean.
    """
    return [
        record(planned, round(50.0 + i // 3 + spread * (planned.cell.seed + _scatter(i // 3, planned.cell.seed)), 2))
        for i, planned in enumerate(cells)
    ]


def _scatter(number: int, seed: int) -> float:
    orders = list(itertools.permutations((-0.05, 0.0, 0.05)))
    return orders[number % len(orders)][seed] if seed < 3 else 0.0


def digests_of(planned: PlannedCell, model: str) -> dict[str, Any]:
    """Return a record's digests of the model called so; equal names are equal models."""
    digest = hashlib.sha256(model.encode()).hexdigest()
    rounds = {str(number): digest for number in (1, planned.cell.protocol.rounds)}
    return {"rounds": rounds, "stages": {"trained": digest}}


def with_digest(one: Record, digest: str) -> Record:
    return one | {"provenance": one["provenance"] | {"dataset_digest": digest}}


def markdown(report: Report) -> str:
    """Return the tables of a report as Markdown."""
    return "\n".join(path.read_text() for path in report.written if path.suffix == ".md")


def renamed(planned: PlannedCell, component: Any) -> PlannedCell:
    """Return the cell with another algorithm object."""
    return replace(planned, cell=replace(planned.cell, algorithm=component))
