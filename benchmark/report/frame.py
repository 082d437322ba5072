"""One tidy table of records: a row per planned cell, with or without a record. Each record is read once."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from fedspan.benchmark.numerics import PORTABLE
from fedspan.benchmark.records.model import STAGES, TRIAL, Bytes, Provenance, Record, Scores, is_trial, machine_of
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.sources import stale
from fedspan.benchmark.records.verification import Badge, Repeated
from fedspan.benchmark.report.axes import flat
from fedspan.benchmark.spec.cell import key_of, training_clients
from fedspan.benchmark.spec.overrides import command_of, override_text
from fedspan.benchmark.spec.plan import PlannedCell
from fedspan.benchmark.training import costs

T = TypeVar("T")

STATUSES = ("done", "diverged", "skipped", "failed", "missing")
BUSY = 0.9  # share of its seconds for which a run must have had a processor, for them to be comparable
COSTS = ("seconds", "flops", "bytes_up", "bytes_down", "memory_bytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class CellRow:
    """A planned cell and the contents of its record; what no record holds is empty, None, or NaN for a cost.

    `point` is the same for cells that differ only in the seed. `stages` are the scores plus two stages: `final`, the
    last one that the method has, and `cost`. `beside` is the number of other cells that the machine computed at the
    same time; `waited` means that the run waited for a processor, and `workers` is the number of workers that shared
    the run: its seconds are omitted if it waited or had several. `badge` tells who repeated the record, `repeated` the
    same in a few words; `stale` is a remark if sources other than the current ones made it.
    """

    key: str
    label: str  # of the cell without its seed
    seed: int
    point: str
    what: Mapping[str, Any]  # the cell's settings without the seed; `paper` has those of the papers' scale
    paper: Mapping[str, Any]
    schema: str
    scale: str
    dataset: str  # its settings, as JSON
    dataset_name: str
    dataset_digest: str | None
    partition_digest: str | None
    status: str  # one of STATUSES
    reason: str
    command: str
    scores: Scores
    stages: Mapping[str, Mapping[str, Any]]
    curve: tuple[np.ndarray, np.ndarray] | None  # evaluated rounds [R], accuracy in percent [R]
    spectrum: np.ndarray | None  # the global model's singular values [k]
    local_spectra: Mapping[int, np.ndarray] | None  # by client, [k] each
    gaps: Mapping[int, float] | None  # R by client (journal FedDecorr, Eq. 1)
    penalties: Mapping[str, Any] | None  # component -> client -> one value per local epoch
    shares: np.ndarray | None  # images [clients, classes]
    spaces: np.ndarray | None  # [C, C]
    embedding: Mapping[str, Any] | None
    seconds: float
    flops: float  # as returned by `flops`
    bytes_up: float  # of all clients, including calibrations
    bytes_down: float
    memory_bytes: float
    rounds: int
    bound: bool  # whether its method is a bound
    elapsed: Mapping[int, float]  # evaluated round -> seconds until then
    bytes_until: Mapping[int, float]  # evaluated round -> bytes of all clients until then
    simulated: Mapping[int, float]  # evaluated round -> seconds of the fleet's clock until then
    over_time: tuple[np.ndarray, np.ndarray] | None  # `simulated` seconds [R], accuracy in percent [R]
    beside: float
    waited: bool
    workers: int
    device: str | None
    portable: bool  # whether other machines produce the same bits
    versions: tuple[tuple[str, str], ...]
    git_commit: str | None
    sources: tuple[tuple[str, str], ...]
    uncommitted: str
    stale: str
    badge: Badge
    repeated: str
    models: str  # digests of the models scored in its stages, as JSON; empty without any
    computed: Mapping[str, float] | str = ""  # costs that follow from shapes alone, or the reason why there are none


def collect(cells: Sequence[PlannedCell], results: Results, computed: bool = False) -> pd.DataFrame:
    """Return one `CellRow` per cell, in cell order; if `computed`, with the costs that follow from shapes alone."""
    rows, shared = [], _Shared()
    repeated = Repeated.of(results)
    for planned in cells:
        record = results.read(planned.cell.key) or results.failure(planned.cell.key)
        rows.append(_row(planned, record, repeated, shared))
    if computed:
        told = costs.of_all(cells)
        rows = [dataclasses.replace(row, computed=cost) for row, cost in zip(rows, told, strict=True)]
    names = [field.name for field in dataclasses.fields(CellRow)]
    return pd.DataFrame({name: [getattr(row, name) for row in rows] for name in names})


class _Shared:
    """Values that many rows have in common, each stored once."""

    def __init__(self) -> None:
        self._points: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._values: dict[Any, Any] = {}

    def of_point(self, planned: PlannedCell) -> dict[str, Any]:
        """Return the fields of a `CellRow` that are the same for cells that differ only in the seed."""
        cell = planned.cell
        if (alike := (cell.identity_without_seed, planned.origin.identity_without_seed)) not in self._points:
            self._points[alike] = {
                "point": point_of(cell.what),
                "what": _without_seed(cell.settings),
                "paper": flat(_without_seed(planned.origin.settings)),
                "schema": str(cell.what["schema"]),
                "scale": cell.scale,
                "dataset": json.dumps(cell.what["dataset"], sort_keys=True),
                "dataset_name": cell.dataset.name,
                "rounds": cell.protocol.rounds,
                "bound": cell.bound,
                "label": cell.label_without_seed,
            }
        return self._points[alike]

    def __call__(self, value: T) -> T:
        """Return the stored value that equals this one."""
        found: T = self._values.setdefault(value, value)
        return found


def _model_digests(record: Record | None) -> Mapping[str, Any]:
    return record.get("digests", {}).get("stages", {}) if record else {}


def _row(planned: PlannedCell, record: Record | None, repeated: Repeated, shared: _Shared) -> CellRow:
    cell = planned.cell
    made: Provenance = record["provenance"] if record else {}
    final = record if record and record["status"] != "failed" else None
    badge = repeated.of_record(final) if final else Badge()
    return CellRow(
        **shared.of_point(planned),
        **_measured(record),
        key=cell.key,
        seed=cell.seed,
        dataset_digest=shared(made.get("dataset_digest")),
        partition_digest=shared(made.get("partition_digest")),
        status=record["status"] if record else "missing",
        reason=shared((record["reason"] if record else None) or ""),
        command=_command(planned),
        beside=float(made.get("cells_beside", math.nan)),
        waited=record is not None and waited(record),
        workers=int(made.get("workers", 1)),
        device=shared(machine_of(made)),
        portable=made.get("numerics") == PORTABLE,
        versions=shared(tuple(sorted(made.get("versions", {}).items()))),
        git_commit=shared(made.get("git_commit")),
        sources=shared(tuple(sorted(made.get("sources", {}).items()))),
        uncommitted=shared(", ".join(made.get("uncommitted") or ())),
        stale=shared(stale(made, cell, badge.repeated_by) if final else ""),
        badge=badge,
        repeated=shared(badge.text if final else ""),
        models=json.dumps(stages, sort_keys=True) if (stages := _model_digests(final)) else "",
    )


def _measured(record: Record | None) -> dict[str, Any]:
    """Return the fields of a `CellRow` that come from a record's numbers."""
    empty: dict[str, Any] = {"scores": {}, "stages": {}, "curve": None, "over_time": None}
    empty |= {name: {} for name in ("elapsed", "bytes_until", "simulated")}
    if record is None:
        return empty | _figures(None) | dict.fromkeys(COSTS, math.nan)
    curve, simulated = _curve(record), _simulated(record)
    return {
        "scores": record["scores"],
        "stages": _stages(record),
        "curve": curve,
        "simulated": simulated,
        "over_time": (np.array([simulated[int(when)] for when in curve[0]]), curve[1]) if curve and simulated else None,
        "elapsed": _elapsed(record),
        "bytes_until": _bytes_until(record),
        **_figures(record),
        **_costs(record),
    }


def point_of(what: Mapping[str, Any]) -> str:
    """Return a key that is the same for cells that differ only in the seed; `what` are a cell's settings."""
    return key_of(_without_seed(what))


def _without_seed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "seed"}


def _command(planned: PlannedCell) -> str:
    """Return the shell command that computes a cell's record, from the cell: a record's own command is not trusted."""
    return command_of(override_text(name, value) for name, value in planned.overrides.items())


def waited(record: Record) -> bool:
    """Return whether a run on a CPU had a processor for less than `BUSY` of its seconds; False if unknown."""
    compute = record["compute"]
    had, total = compute.get("processor_seconds"), compute.get("seconds", {}).get("total")
    return had is not None and total is not None and not _on_cuda(record) and had < BUSY * total


def flops(record: Record) -> float | None:
    """Return the floating-point operations of a run without its evaluations; None if they were not counted.

    They comprise training, other computations of the method on clients' images, and calibrations.
    """
    counted = record["compute"].get("flops", {})
    return sum(number for purpose, number in counted.items() if purpose != "evaluate") if "train" in counted else None


def _seconds(record: Record) -> Mapping[str, float]:
    """Return a run's seconds by phase and in total, on one core.

    Empty if the run waited, as its seconds then reflect other work of the machine, or if several workers shared it.
    """
    return record["compute"].get("seconds", {}) if _of_one_core(record) else {}


def _of_one_core(record: Record) -> bool:
    return not waited(record) and record["provenance"].get("workers", 1) == 1


def _costs(record: Record) -> dict[str, float]:
    compute = record["compute"]
    sizes = compute.get("bytes", {})
    found = (
        _seconds(record).get("total"),
        flops(record),
        sizes.get("up"),
        sizes.get("down"),
        compute.get("memory_bytes", {}).get("train"),
    )
    return {name: math.nan if value is None else float(value) for name, value in zip(COSTS, found, strict=True)}


def mean_cost(runs: Iterable[Any]) -> dict[str, float]:
    """Return the mean costs over the cells of rows of `collect`'s frame; NaN if one of the cells has no value.

    Besides `COSTS` there are `seconds_std`, the sample standard deviation over the seeds of a cell (pooled over several
    cells), and `beside`, the largest number of other cells on a run's machine.
    """
    mine = list({run.key: run for run in runs}.values())
    cells: dict[str, list[Any]] = {}
    for run in mine:
        cells.setdefault(run.point, []).append(run)
    means = {name: [_mean(getattr(run, name) for run in cell) for cell in cells.values()] for name in COSTS}
    cost = {name: fmean(values) if values else math.nan for name, values in means.items()}
    timed = [[run.seconds for run in cell if math.isfinite(run.seconds)] for cell in cells.values()]
    spreads = [(len(seconds) - 1, variance(seconds)) for seconds in timed if len(seconds) > 1]
    freedom = sum(count for count, _ in spreads)
    cost["seconds_std"] = math.sqrt(sum(n * spread for n, spread in spreads) / freedom) if freedom else math.nan
    cost["beside"] = max((run.beside for run in mine if math.isfinite(run.beside)), default=math.nan)
    return cost


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return math.fsum(known) / len(known) if known else math.nan


def _curve(record: Record) -> tuple[np.ndarray, np.ndarray] | None:
    """Return rounds and accuracies on test images; None without any, and for a trial, which sees no test images."""
    curve = {} if is_trial(record) else record["curve"]
    pairs = [
        (when, value)
        for when, value in zip(curve.get("round", []), curve.get("accuracy", []), strict=False)
        if value is not None
    ]
    if not pairs:
        return None
    rounds, accuracy = np.array(pairs, dtype=np.float64).T
    return rounds, accuracy


def _elapsed(record: Record) -> dict[int, float]:
    if not _of_one_core(record):
        return {}
    seconds = record["compute"].get("seconds_at_round", [])
    return dict(zip(record["curve"].get("round", []), map(float, seconds), strict=False))


def _simulated(record: Record) -> dict[int, float]:
    seconds = record.get("fleet", {}).get("seconds_at_round", [])
    return dict(zip(record["curve"].get("round", []), map(float, seconds), strict=False))


def _bytes_until(record: Record) -> dict[int, float]:
    """Return the bytes that all clients have sent and received by each evaluated round; empty where not recorded."""
    sizes = record["compute"].get("bytes_at_round", [])
    return dict(zip(record["curve"].get("round", []), map(float, sizes), strict=False))


def _figures(record: Record | None) -> dict[str, Any]:
    """Return figure data: singular values and R by client, penalties, shares, spaces, points; None if absent."""
    spectra, found = (record.get("spectra", {}), record.get("diagnostics", {})) if record else ({}, {})
    globe = spectra.get("global", {}).get("singular_values")
    local = {int(client): one["singular_values"] for client, one in spectra.get("local", {}).items()}
    return {
        "spectrum": np.array(globe, dtype=np.float64) if globe else None,
        "local_spectra": {client: np.array(values, dtype=np.float64) for client, values in local.items()} or None,
        "gaps": {int(client): float(r) for client, r in spectra.get("gap", {}).items()} or None,
        "penalties": found.get("penalties") or None,
        "shares": np.array(found["shares"], dtype=np.int64) if found.get("shares") else None,
        "spaces": np.array(found["spaces"], dtype=np.float64) if found.get("spaces") else None,
        "embedding": found.get("embedding") or None,
    }


def _stages(record: Record) -> dict[str, Mapping[str, Any]]:
    """Return the scores by stage, plus two stages: `final`, the last one that the method has, and `cost`.

    A trial has no stage `final`, as its scores are not results; a record without scores has neither.
    """
    scores: dict[str, Mapping[str, Any]] = {**record["scores"]}
    if TRIAL in scores:
        return scores | {"cost": _cost_of(record)}
    last = next((scores[name] for name in reversed(STAGES) if name in scores), None)
    return scores if last is None else scores | {"final": last, "cost": _cost_of(record)}


def _cost_of(record: Record) -> dict[str, float | None]:
    """Return the costs that a table can show, by name."""
    compute, spec = record["compute"], record["spec"]
    seconds, sizes = _seconds(record), compute.get("bytes", Bytes())
    cost = {
        "bytes": sizes.get("up", 0) + sizes.get("down", 0),
        "memory_bytes": compute.get("memory_bytes", {}).get("train"),
        "peak_memory_bytes": compute.get("peak_memory_bytes") if _on_cuda(record) else None,
        "head_seconds": seconds.get("net"),
    }
    if "calibrate_server" in seconds:  # those of the mean client and the server, as in SphereFed 2022, Fig. 5 (d)
        clients = training_clients(spec["clients"], spec.get("unseen", 0.0))
        cost["calibration_seconds"] = seconds.get("calibrate", 0.0) / clients + seconds["calibrate_server"]
    if "local" in seconds:
        rounds = spec["protocol"]["rounds"]
        cost["local_seconds_per_round"] = seconds["local"] / rounds
        cost["minutes_per_round"] = seconds["local"] / rounds / 60
    if (turns := record.get("fleet")) is not None:
        cost["lost_visits"] = turns["lost"]
        cost["simulated_seconds"] = turns.get("seconds")
        if "seconds" in turns:
            cost["simulated_seconds_per_round"] = turns["seconds"] / spec["protocol"]["rounds"]
    if "classifier" in compute:
        cost["classifier_megabytes"] = compute["classifier"]["bytes_of_one_client"] / 1e6
        cost["classifier_gflop"] = compute["classifier"]["flops"] / 1e9
    return cost


def _on_cuda(record: Record) -> bool:
    """Return whether a run used CUDA: only then is its peak the allocator's (older CPU records have the process's)."""
    return record["provenance"].get("device", "").startswith("cuda")
