"""Cost of missing cells: from records of similar cells on the same kind of machine, else from short timing runs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np
from rich.console import Console
from rich.status import Status
from rich.text import Text

from fedspan.benchmark import rng
from fedspan.benchmark.data.unseen import split_off_unseen
from fedspan.benchmark.errors import Diverged, Incompatible, UserError
from fedspan.benchmark.fleet import Fleet
from fedspan.benchmark.names import counted_as
from fedspan.benchmark.protocol import MOST_ROUNDS
from fedspan.benchmark.records.provenance import machine_here
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.spec.cell import Cell
from fedspan.benchmark.spec.diagnostics import Diagnostics
from fedspan.benchmark.spec.plan import PlannedCell, check_images
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.task import Data, Partition, Split
from fedspan.benchmark.training.costs import without_values
from fedspan.benchmark.training.process import set_up_process
from fedspan.benchmark.training.run import Run, expected_participants, participants
from fedspan.benchmark.training.workers.schedule import round_seconds

BATCHES = 4  # of training images in a timed round
SECONDS = 10.0  # of training, over all timing runs
LEAST = 0.5  # of training, in each timing run at least
ROUNDS = 20  # drawn to represent all rounds, if clients are sampled
SHORT = 1.0  # seconds; time rounds shorter than this instead of extrapolating from FLOPs
TINY = 1e-6  # learning rate of a timing run, which must not diverge
STEP = ("batch_size", "precision", "augment", "last_batch")  # protocol fields that determine a step's cost


@dataclass(frozen=True)
class Estimate:
    """Seconds of one core and the basis of the estimate.

    `failing` and `impossible` hold (number of cells, reason): cells that cannot run here, and cells whose method is
    impossible on their task.
    """

    seconds: float
    basis: str
    failing: tuple[tuple[int, str], ...] = ()
    impossible: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Speed:
    """Speed of a model here: seconds to prepare, per training image and per test image, and the FLOPs of a step."""

    prepare: float
    trained: float
    tested: float
    flops: int


def cost_key(what: Mapping[str, Any]) -> str:
    """Return the cost key: cells with equal keys cost the same.

    It covers everything but seed, partition, learning rate, and the methods' float settings: rates and coefficients do
    not change the amount of computation, unlike epochs and numbers of draws.
    """
    kept = {k: v for k, v in what.items() if k not in ("seed", "partition")}
    kept["protocol"] = {k: v for k, v in what["protocol"].items() if k != "lr"}
    kept["algorithm"], *kept["addons"] = (_without_rates(part) for part in (what["algorithm"], *what["addons"]))
    return json.dumps(kept, sort_keys=True)


def _without_rates(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if not isinstance(value, float)}


def workload_key(what: Mapping[str, Any]) -> str:
    """Return the workload key (images, model, batches): steps of cells with equal keys differ only in FLOPs."""
    protocol = {name: what["protocol"].get(name) for name in STEP}
    return json.dumps({"dataset": what["dataset"], "model": what["model"], "protocol": protocol}, sort_keys=True)


def estimate(
    missing: Sequence[PlannedCell], results: Results, console: Console, unknown: Sequence[PlannedCell] = ()
) -> Estimate:
    """Return the expected total cost of the `missing` cells and of `unknown`, stand-ins for cells not chosen yet.

    A cell costs the mean of records with its cost key from the same kind of machine; without any, what a few of its
    rounds take now if they are short, else its FLOPs at the current speed of a few batches of its workload. Missing
    cells that reuse another one's training are not counted. Raises `UserError` if no cell has such a record or can run.
    """
    trainings = {planned.cell.train_key: planned for planned in reversed(missing)}
    reusing, missing = len(missing) - len(trainings), [*reversed(trainings.values()), *unknown]
    kinds: dict[str, list[PlannedCell]] = {}
    for planned in missing:
        kinds.setdefault(cost_key(planned.cell.what), []).append(planned)
    recorded = _recorded_seconds(results, machine_here(How.of(missing[0].config).device))
    seconds = {kind: recorded[kind] for kind in kinds if kind in recorded}  # of one cell
    if not seconds:
        check_images(missing)
    known, new = len(seconds), len(kinds) - len(seconds)
    speeds: dict[str, Speed] = {}
    failing: Counter[str] = Counter()
    impossible: Counter[str] = Counter()
    announcer = _Announcer(console, new)
    with announcer.status:
        for kind, cells in kinds.items():
            if kind in seconds:
                continue
            announcer.next(cells[0].cell.label)
            try:
                seconds[kind] = expected_seconds(cells[0], speeds, max(LEAST, SECONDS / new))
            except UserError as error:
                failing[str(error)] += len(cells)
            except Incompatible as error:
                impossible[str(error)] += len(cells)
    if failing.total() == len(missing):
        raise UserError(next(iter(failing)))
    total = sum(seconds[kind] * len(cells) for kind, cells in kinds.items() if kind in seconds)
    basis = _basis(known, len(seconds) - known, reusing)
    return Estimate(total, basis, _by_reason(failing), _by_reason(impossible))


def _recorded_seconds(results: Results, machine: str | None) -> dict[str, float]:
    """Return the mean seconds of a finished cell on this kind of machine, by cost key."""
    measured: dict[str, list[float]] = {}
    for entry, spec in results.specs():
        if entry.status == "done" and entry.seconds is not None and entry.machine == machine:
            measured.setdefault(cost_key(spec), []).append(entry.seconds)
    return {kind: fmean(seconds) for kind, seconds in measured.items()}


def _by_reason(cells: Mapping[str, int]) -> tuple[tuple[int, str], ...]:
    return tuple((count, why) for why, count in cells.items())


def _basis(known: int, timed: int, reusing: int) -> str:
    """Return what an estimate rests on; `reusing` cells go on from the training of another."""
    parts = [f"records for {counted_as(known, 'kind')} of cells"] if known else []
    parts += [f"timing runs of {counted_as(timed, 'kind')} of cells"] if timed else []
    reused = f"{counted_as(reusing, 'cell reuses', 'cells reuse')} the training of another" if reusing else ""
    return "; ".join(filter(None, [" and ".join(parts), reused]))


@dataclass(frozen=True)
class SpreadGain:
    """Upper bound on a cell's speed-up by `workers`; `largest` is the largest client's share of a round."""

    workers: int
    times: float
    largest: float


def spread_gain(cell: Cell, how: How, workers: int) -> SpreadGain | None:
    """Return a cell's largest gain from `workers`, by the steps of its clients; None if one worker suffices.

    None also for fleets, whose draws change the steps. Raises `UserError` or `Incompatible` if the cell cannot run.
    """
    if cell.fleet.acts or cell.method().one_client:
        return None
    data = cell.dataset.prepare(how.data)
    split, _ = split_off_unseen(_split(cell, data), cell.training_clients, cell.seed)
    drawn = 1 if cell.participation >= 1 else min(ROUNDS, cell.protocol.rounds)
    who = cell.training_clients, cell.participation, cell.seed
    rounds = [participants(*who, number, cell.protocol.sampling) for number in range(drawn)]
    rounds = [here for here in rounds if here]
    workers = min(workers, max(map(len, rounds), default=0))
    if workers <= 1:
        return None
    steps = [[-(-len(split.train[client]) // cell.protocol.batch_size) for client in here] for here in rounds]
    alone, spread = sum(map(sum, steps)), sum(round_seconds(here, workers) for here in steps)
    return SpreadGain(workers, alone / spread, sum(map(max, steps)) / alone)


class _Announcer:
    """Announces each kind of cell that is timed: one updated line on a terminal, else one line each."""

    def __init__(self, console: Console, kinds: int) -> None:
        self._console, self._kinds, self._number = console, kinds, 0
        self.status = console.status("") if console.is_terminal and kinds else contextlib.nullcontext()

    def next(self, label: str) -> None:
        """Announce the next kind."""
        self._number += 1
        said = f"timing {self._number} of {self._kinds} kinds of cells: {label}"
        if isinstance(self.status, Status):
            self.status.update(Text(said))
        else:
            self._console.print(said, markup=False, highlight=False, soft_wrap=True)


def expected_seconds(planned: PlannedCell, speeds: dict[str, Speed], seconds: float) -> float:
    """Return the expected seconds of a cell, 0 if it diverges at once; add its workload to `speeds` if missing.

    `seconds` is the time to train it here. Raises `UserError` if it cannot run here, `Incompatible` if nowhere.
    """
    cell, how = planned.cell, How.of(planned.config)
    set_up_process(how)
    data = cell.dataset.prepare(how.data)
    try:
        flops = step_flops(cell, data)
        name = workload_key(cell.what)
        if name not in speeds:
            speeds[name] = measure_speed(cell, how, flops, seconds)
        whole = cost(cell, data, speeds[name], flops)
        return extrapolated_seconds(cell, how, seconds) if whole < SHORT * cell.protocol.rounds else whole
    except Diverged:  # its record will give the reason
        return 0.0


def cost(cell: Cell, data: Data, speed: Speed, flops: int) -> float:
    """Return the seconds of a whole cell with `flops` per step."""
    protocol = cell.protocol
    split = _split(cell, data)
    held = sum(map(len, split.train))
    images = held * (1 - protocol.validation)
    tests = len(data.test) if split.test is None else sum(map(len, split.test))
    epochs = sum(epochs for epochs, _ in cell.method().phases(protocol.local_epochs))
    trained = protocol.rounds * epochs * images * _share(cell)
    tested = _evaluations(cell) * (held - images if protocol.trial else tests)
    return speed.prepare + trained * speed.trained * flops / speed.flops + tested * speed.tested


def _split(cell: Cell, data: Data) -> Split:
    """Return the clients' images; some partitions use only a part of all images."""
    return cell.partition.prepare(data, cell.clients, rng.numpy_generator(cell.seed, "partition"))


def _share(cell: Cell) -> float:
    """Return the fraction of all clients that trains in a round."""
    if cell.method().one_client:
        return 1.0
    return expected_participants(cell) / cell.clients


def _evaluations(cell: Cell) -> int:
    return -(-cell.protocol.rounds // cell.protocol.eval_every) + 1


def extrapolated_seconds(cell: Cell, how: How, seconds: float) -> float:
    """Return the seconds of a whole cell, extrapolated from the rounds it trains here in `seconds`.

    A cell that diverges in these rounds ends there: these are all its seconds.
    """
    run = Run(_timed(cell, max(cell.protocol.rounds, 2)), how)
    prepare = run.meter.seconds["prepare"]
    try:
        local, evaluated = _round(run, seconds)
    except Diverged:
        return sum(run.meter.seconds.values())
    return prepare + cell.protocol.rounds * local + _evaluations(cell) * evaluated


def _round(run: Run, seconds: float) -> tuple[float, float]:
    """Advance a run for `seconds`, at most to its end; return a round's seconds without evaluation, and evaluation's.

    The first round, which warms up and counts FLOPs, is left out. Medians ignore moments when the machine does
    something else. On a CPU they are processor seconds, as in records: next to other work a round takes longer.
    """
    run.advance()
    rest: list[float] = []
    evaluated: list[float] = []
    start, began = time.perf_counter(), time.process_time()
    while not rest or (time.perf_counter() - start < seconds and not run.finished):
        before = dict(run.meter.seconds)
        run.advance()
        spent = {phase: now - before.get(phase, 0.0) for phase, now in run.meter.seconds.items()}
        evaluated.append(spent.pop("evaluate"))
        rest.append(sum(spent.values()))
    busy = (time.process_time() - began) / (time.perf_counter() - start) if run.device.type == "cpu" else 1.0
    return min(busy, 1.0) * median(rest), min(busy, 1.0) * median(evaluated)


def step_flops(cell: Cell, data: Data) -> int:
    """Return the FLOPs of a cell's mean step on a whole batch, counted without computing; may raise `Incompatible`."""
    trainer, state = without_values(cell, data)
    steps = trainer.step_costs(state)
    return sum(epochs * flops for epochs, flops, _ in steps) // sum(epochs for epochs, _, _ in steps)


def measure_speed(cell: Cell, how: How, flops: int, seconds: float) -> Speed:
    """Return the speed of a cell's step of `flops` here, measured on real training and evaluation batches."""
    probe = _probe(cell)
    Run(probe, how)  # warm up: imports
    run = Run(probe, how)
    prepare, images = run.meter.seconds["prepare"], len(run.trainer.data.train)
    local, evaluated = _round(run, seconds)
    return Speed(prepare, local / images, evaluated / len(run.trainer.data.test), flops)


@dataclass(frozen=True)
class _Whole(Partition):
    """Partition with all images at one client."""

    name = "whole"

    def split(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Sequence[np.ndarray]:
        return [np.arange(len(labels))]


def _probe(cell: Cell) -> Cell:
    """Return the same training on a few images of one client that joins every round, in steps too small to diverge."""
    images = max(BATCHES * cell.protocol.batch_size, 10)
    few = dataclasses.replace(
        cell,
        dataset=dataclasses.replace(cell.dataset, limit=min(images, cell.dataset.limit or images)),
        partition=_Whole(),
        fleet=Fleet(),
        clients=1,
        unseen=0.0,
        participation=1.0,
        protocol=dataclasses.replace(cell.protocol, lr=min(cell.protocol.lr, TINY), local_epochs=1, validation=0.0),
    )
    return _timed(few, MOST_ROUNDS)


def _timed(cell: Cell, rounds: int) -> Cell:
    """Return the cell with `rounds` rounds, evaluated after each, without diagnostics."""
    protocol = dataclasses.replace(cell.protocol, rounds=rounds, eval_every=1)
    return dataclasses.replace(cell, protocol=protocol, diagnostics=Diagnostics())
