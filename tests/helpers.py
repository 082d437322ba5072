"""Cells of the toy task, runs, and what tests compare of them."""

from __future__ import annotations

import copy
import dataclasses
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedspan.benchmark.component import Component
from fedspan.benchmark.data.batches import DeviceData
from fedspan.benchmark.protocol import Protocol
from fedspan.benchmark.records.exchange import MEASURED
from fedspan.benchmark.records.model import Record
from fedspan.benchmark.running.cell_run import run_cell
from fedspan.benchmark.spec.cell import Cell
from fedspan.benchmark.spec.diagnostics import Diagnostics
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.task import Data, Split
from fedspan.benchmark.training.run import Run
from fedspan.benchmark.tree import digest
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.tasks.fleets.reliable import Reliable

from .toys import CLIENTS, Blobs, PlainNet, Ragged

PATIENCE = 500  # seconds; long, so that no test fails because the machine is busy


NOWHERE = {"dataset": "cifar10", "dataset.content": "0000"}  # no setting names the images
QUICK = Protocol(rounds=3, local_epochs=2, batch_size=8, lr=0.05, momentum=0.9, weight_decay=1e-3)


def toy_cell(
    algorithm: Component | None = None, *addons: Component, protocol: Mapping[str, Any] | None = None, **parts: Any
) -> Cell:
    """Return a cell of the toy task; `protocol` and `parts` replace what is named."""
    values: dict[str, Any] = {
        "dataset": Blobs(),
        "partition": Ragged(),
        "clients": CLIENTS,
        "participation": 1.0,
        "unseen": 0.0,
        "fleet": Reliable(),
        "model": PlainNet(),
        "algorithm": algorithm or FedAvg(),
        "addons": addons,
        "protocol": dataclasses.replace(QUICK, **(protocol or {})),
        "seed": 0,
        "scale": "own",
        "diagnostics": Diagnostics(),
    }
    return Cell(**(values | parts))


def how(folder: Path | None = None, **more: Any) -> How:
    """Return where to run; a test that writes nothing needs no folder."""
    folder = folder or Path(tempfile.gettempdir()) / "fedspan-tests-write-nothing-here"
    return How(folder / "results", folder / "data", **more)


def start(cell: Cell, **more: Any) -> Run:
    """Return the cell before its first round."""
    return Run(cell, how(**more))


def trained(cell: Cell, **more: Any) -> Run:
    """Return the cell after its last round."""
    run = start(cell, **more)
    while not run.finished:
        run.advance()
    return run


def transposed(leaf: torch.Tensor) -> torch.Tensor:
    """Return the same values in another memory layout, if it is a matrix."""
    return leaf.t().contiguous().t() if leaf.dim() == 2 else leaf


def weights(run: Run) -> str:
    """Return a digest of all that the next round depends on."""
    return digest(run.state.pack())


def counted(run: Run) -> dict[str, Any]:
    """Return the meter's counts without times and memory."""
    return without_clock(run.meter.as_dict())


def without_clock(compute: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record's `compute` without seconds and memory."""
    return {k: v for k, v in compute.items() if k not in MEASURED}


def numbers(record: Record) -> dict[str, Any]:
    """Return a record without seconds, memory and provenance."""
    kept = {k: v for k, v in record.items() if k not in ("provenance", "compute")}
    return kept | {"compute": without_clock(record["compute"])}


def whole(record: Record) -> Record:
    """Return a record that was made by hand, with all that a finished run leaves besides its scores.

    Its curve ends at the last round with the trained accuracy, and its best score is that of its curve.
    """
    if record["status"] != "done":
        return record
    made: Any = copy.deepcopy(record)
    last, reached = made["spec"]["protocol"]["rounds"], made["scores"]["trained"].get("accuracy")
    rounds = [*(when for when in made["curve"].get("round", [])[:-1] if when < last), last]
    curves = {"accuracy": [reached] * len(rounds)} | {k: v for k, v in made["curve"].items() if k != "round"}
    made["curve"] = {"round": rounds} | {name: values[-len(rounds) :] for name, values in curves.items()}
    accuracies = made["curve"]["accuracy"]
    accuracies[-1] = reached
    made["scores"].pop("best", None)
    if seen := [(one, -when) for when, one in zip(rounds, accuracies, strict=True) if one is not None]:
        made["scores"]["best"] = {"accuracy": max(seen)[0], "round": -max(seen)[1]}
    compute = made["compute"]
    for part, least in {"seconds": {"total": 6.0}, "flops": {"train": 1}, "bytes": {"up": 1, "down": 1}}.items():
        compute[part] = least | compute.get(part, {})
    compute |= {"steps": last, "images": 10 * last} | compute
    whole, until = compute["seconds"]["total"], compute.get("seconds_at_round", [])
    if len(until) != len(rounds) or until[-1] > whole:
        compute["seconds_at_round"] = [whole * when / last for when in rounds]
    sent, until = compute["bytes"]["up"] + compute["bytes"]["down"], compute.get("bytes_at_round", [])
    if len(until) != len(rounds) or until[-1] > sent:
        compute["bytes_at_round"] = [sent * when // last for when in rounds]
    made["provenance"] = {"dataset_digest": "d" * 64, "partition_digest": "e" * 64} | made["provenance"]
    return made


def record_in(job: tuple[Cell, Path]) -> dict[str, Any]:
    """Run a cell in a folder and return the numbers of its record; for worker processes."""
    cell, folder = job
    return numbers(run_cell(cell, how(folder)))


def device_data(cell: Cell) -> DeviceData:
    """Return the data of a cell as its clients see it."""
    return start(cell).trainer.data


def everything_to_one(data: Data) -> Split:
    """Return the split that gives all images to one client."""
    return Split((np.arange(len(data.train)),))


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until `condition()` holds, for at most `PATIENCE` seconds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)
