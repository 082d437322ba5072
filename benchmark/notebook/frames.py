"""`fedspan.results` and `fedspan.curves`: records as data frames."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedspan.benchmark import names
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.records.model import Record, is_trial, judged
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.selection import select
from fedspan.benchmark.records.verification import Repeated
from fedspan.benchmark.registry import load_files, plugins
from fedspan.benchmark.report.frame import flops, waited
from fedspan.benchmark.report.tuning import TUNED, Reported
from fedspan.benchmark.spec.plan import plan_grid
from fedspan.benchmark.spec.settings import paths_of
from fedspan.benchmark.spec.studies import studies_of

OWN = "own_results"  # the folder of your own runs; holds nothing published, and no board reads it by default
PUBLISHED = "results"
LENGTH = ("rounds", "local_epochs")  # protocol settings of a task; the rest may be tuned per method

# The columns of `results`: type and meaning.
COLUMNS = {
    "method": ("string", "the method's name: FedAvg + FedDecorr (released form); FedAvg, tuned"),
    "tuning": ("string", "on a board that tunes: default, or tuned with what the trials chose; else missing"),
    "task": ("string", "the task's name: CIFAR-10, 5,000 images, 10 clients, alpha 0.05"),
    "model": ("string", "the model's name"),
    "seed": ("Int64", "the seed of every random draw"),
    "accuracy": (
        "Float64",
        "percent, after the last round, at the last stage; the mean over clients where they have test images of their "
        "own; missing where there is none",
    ),
    "stage": (
        "string",
        "trained, calibrated or personalised: the last stage that the method has; validation for a trial, whose "
        "accuracy is on held-out images",
    ),
    "epsilon": ("Float64", "epsilon of the whole training (differential privacy); missing for methods without it"),
    "delta": ("Float64", "the delta of that epsilon"),
    "status": ("string", "done, skipped, diverged or failed"),
    "reason": ("string", "why the status is not done"),
    "algorithm": ("string", "code name of the algorithm, as in algorithm=NAME"),
    "addons": ("string", "code names of the add-ons, joined by +"),
    "dataset": ("string", "code name"),
    "partition": ("string", "code name"),
    "skew": ("Float64", "how unequal the clients are, where the partition has a number for it (alpha)"),
    "clients": ("Int64", "number of clients"),
    "participation": ("Float64", "fraction of the clients in each round"),
    "rounds": ("Int64", "rounds of training"),
    "local_epochs": ("Int64", "epochs of a client in a round"),
    "lr": ("Float64", "learning rate of the clients"),
    "scale": ("string", "paper, own, small or smoke"),
    "seconds": ("Float64", "wall time of the run; missing where it waited for a processor"),
    "gflop": ("Float64", "compute of training and calibration, 1e9 floating-point operations"),
    "up_megabytes": ("Float64", "sent by one client in one round, 1e6 bytes"),
    "down_megabytes": ("Float64", "received by one client in one round, 1e6 bytes"),
    "memory_megabytes": ("Float64", "memory of one training step, 1e6 bytes"),
    "repeated": ("string", "whether somebody repeated the record"),
    "task_id": (
        "string",
        "the same for runs on the same images that differ only in method, seed and details of the protocol",
    ),
    "partition_id": ("string", "the same for runs whose clients have the same images"),
    "key": ("string", "the record's key; its file is records/<key>.json"),
}


def results(
    board: str | None = None,
    *,
    results: str | Path | None = None,
    scale: str | None = None,
    plugins: str | Path | Sequence[str | Path] = (),
) -> pd.DataFrame:
    """Return the records of a folder as a data frame, one row per run; `COLUMNS` explains the columns.

    With a `board`, return only its cells (at `scale`, if given), by default from the published records; without one,
    return all of the folder `results`, by default your own runs. A tuned board has default and tuned runs of each
    method. Missing numbers are ``pd.NA``. Trials of a search are omitted, because they are scored on held-out training
    images. `plugins` are files with your own methods, for their names and for boards that use them. Raises `UserError`
    for an unknown board, and if a folder or file does not exist.
    """
    load_files(paths_of(plain(plugins)))
    where = Path(results or (PUBLISHED if board else OWN))
    if (results or board) and not where.is_dir():
        clone = "" if results else "; published runs are in a clone of FedSpan: run this there or name a folder"
        raise UserError(f"the results folder {where} does not exist, seen from {Path.cwd()}{clone}")
    place = Results(where, sets_aside=False)
    if board is None:
        if scale is not None:
            raise UserError("only boards have scales; name the board")
        return frame_of(place, place.all())
    asked: dict[str, list[Any]] = {"board": [board]} | ({"scale": [scale]} if scale else {})
    reported = Reported.of(plan_grid(asked), [select(study, place.read) for study in studies_of(asked)])
    tuning = reported.tuning or (None,) * len(reported.cells)
    repeated, rows = Repeated.of(place), {}
    for planned, named, how in zip(reported.cells, reported.named, tuning, strict=True):
        key = planned.cell.key
        if (record := place.read(key) or place.failure(key)) is not None:
            called = names.method_name(named.cell.settings) + (f", {TUNED}" if how == TUNED else "")
            rows[called, key] = _row(record, repeated) | {"method": called, "tuning": how}
    return _frame(place, list(rows.values()))


def curves(runs: pd.DataFrame, *, results: str | Path | None = None) -> pd.DataFrame:
    """Return the accuracy of runs per evaluated round: `method`, `task`, `seed`, `round`, `accuracy`, `key`.

    `runs` are rows from `results` or `run`. Records are read from the folder that the rows came from; concatenated
    frames do not know theirs, so give `results`. Raises `UserError` if a finished run has no record there.
    """
    place = Results(Path(results or runs.attrs.get("folder", OWN)), sets_aside=False)
    check_columns(runs, "key", "method", "task", "seed", "status")
    records = {key: place.read(str(key)) for key in runs["key"]}
    finished = runs.loc[runs["status"].isin(["done", "diverged"]), "key"]
    if missing := sum(records[key] is None for key in finished):
        raise UserError(f"{missing} of {len(finished)} finished runs have no record in {place.root}; give results=DIR")
    lines = [
        {"method": run.method, "task": run.task, "seed": run.seed, "round": when, "accuracy": accuracy, "key": run.key}
        for run in runs.itertuples()
        if (record := records[run.key]) is not None
        for when, accuracy in _curve(record)
    ]
    types = {name: COLUMNS[name][0] for name in ("method", "task", "seed", "accuracy", "key")} | {"round": "Int64"}
    return pd.DataFrame(lines, columns=["method", "task", "seed", "round", "accuracy", "key"]).astype(types)


def plain(value: Any) -> Any:
    """Return NumPy numbers as Python numbers and paths as texts, also within a list."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, Path) else value


def check_columns(runs: pd.DataFrame, *needed: str) -> None:
    """Raise `UserError` unless `runs` has the columns of `results` that a function needs."""
    if not isinstance(runs, pd.DataFrame):
        raise UserError(f"runs must be a table, got {runs!r:.60}; give rows of fedspan.results or fedspan.run")
    if missing := [name for name in needed if name not in runs]:
        raise UserError(f"these runs lack {', '.join(missing)}; give rows of fedspan.results or fedspan.run")


def _curve(record: Record) -> Iterator[tuple[int, float]]:
    curve: Mapping[str, Any] = record["curve"]
    pairs = zip(curve.get("round", []), curve.get("accuracy", []), strict=False)
    yield from ((when, value) for when, value in pairs if value is not None)


def frame_of(place: Results, records: Iterable[Record], trials: bool = False) -> pd.DataFrame:
    """Return a frame of records, sorted by task, model, method and seed; trials are included only if asked for."""
    repeated = Repeated.of(place)
    return _frame(place, [_row(record, repeated) for record in records if trials or not is_trial(record)])


def _frame(place: Results, rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype({name: kind for name, (kind, _) in COLUMNS.items()})
    frame = frame.sort_values(["task", "model", "method", "seed"], ignore_index=True)
    frame.attrs["folder"] = str(place.root.absolute())
    return frame


def _row(record: Record, repeated: Repeated) -> dict[str, Any]:
    spec: Mapping[str, Any] = record["spec"]
    stage, accuracy = judged(record)
    protocol, partition = spec["protocol"], spec["partition"]
    return {
        "method": names.method_name(spec),
        "tuning": None,
        "task": names.task_name(spec),
        "model": names.name_from("model", spec["model"]),
        "accuracy": accuracy,
        "stage": stage or None,
        **{name: record["scores"].get("privacy", {}).get(name) for name in ("epsilon", "delta")},
        "status": record["status"],
        "reason": record["reason"] or None,
        "algorithm": spec["algorithm"]["name"],
        "addons": " + ".join(addon["name"] for addon in spec["addons"]),
        "dataset": spec["dataset"]["name"],
        "partition": partition["name"],
        "skew": partition.get(getattr(plugins("partition").get(partition["name"]), "skew_field", "")),
        **{name: spec[name] for name in ("seed", "clients", "participation", "scale")},
        **{name: protocol.get(name) for name in (*LENGTH, "lr")},
        **_costs(record),
        "repeated": repeated.of_record(record).text if record["status"] != "failed" else None,
        "task_id": _task_id(spec, record["provenance"].get("dataset_digest")),
        "partition_id": (record["provenance"].get("partition_digest") or "")[:12] or None,
        "key": record["key"],
    }


def _costs(record: Record) -> dict[str, float | None]:
    compute: Mapping[str, Any] = record["compute"]
    sizes = compute.get("bytes", {})
    found = {
        "seconds": (None if waited(record) else compute.get("seconds", {}).get("total"), 1),
        "gflop": (flops(record), 1e9),
        "up_megabytes": (sizes.get("up_per_client_round"), 1e6),
        "down_megabytes": (sizes.get("down_per_client_round"), 1e6),
        "memory_megabytes": (compute.get("memory_bytes", {}).get("train"), 1e6),
    }
    return {name: None if value is None else value / unit for name, (value, unit) in found.items()}


def _task_id(spec: Mapping[str, Any], images: str | None) -> str:
    """Return the same text for cells on the same task and images: ``TASK`` without a fleet, else ``TASK-FLEET``."""
    parts = ("dataset", "partition", "clients", "participation", "model", "scale", "unseen")
    shared = (
        {"images": images}
        | {name: spec[name] for name in parts if name in spec}
        | {name: spec["protocol"][name] for name in (*LENGTH, "validation") if name in spec["protocol"]}
    )
    return "-".join(map(_digest, [shared, spec["fleet"]] if "fleet" in spec else [shared]))


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
