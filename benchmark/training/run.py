"""One cell in memory, round by round: sample clients, train, aggregate, evaluate."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedspan.benchmark import numerics, rng
from fedspan.benchmark.component import Aggregate, Setting
from fedspan.benchmark.data.batches import DeviceData, memory_format
from fedspan.benchmark.data.unseen import split_off_unseen
from fedspan.benchmark.errors import Diverged, Incompatible, UserError
from fedspan.benchmark.method import Method
from fedspan.benchmark.net import Net
from fedspan.benchmark.records.model import LARGEST
from fedspan.benchmark.spec.cell import Cell
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.task import Data, share_of
from fedspan.benchmark.training import diagnostics, stages
from fedspan.benchmark.training.evaluation import score
from fedspan.benchmark.training.executors import executor_of
from fedspan.benchmark.training.executors.round_sums import RoundSums
from fedspan.benchmark.training.layout import lay_out
from fedspan.benchmark.training.local import LocalTrainer
from fedspan.benchmark.training.meter import Meter
from fedspan.benchmark.training.penalty_trace import trace_penalties
from fedspan.benchmark.training.process import device_of, numerics_of
from fedspan.benchmark.training.state import Paths, State, check_freezing
from fedspan.benchmark.training.traffic import count_round, count_sent_weights, download_bytes
from fedspan.benchmark.training.turns import FleetRunner, count_turns
from fedspan.benchmark.tree import Tree, add, finite, in_layout_of, zeros

Curve = dict[str, list[Any]]

log = logging.getLogger("fedspan")


def participants(clients: int, participation: float, seed: int, round: int, sampling: str = "fixed") -> list[int]:
    """Return a round's clients, keyed by the round: a `fixed` number, or (`poisson`) each with equal probability."""
    if participation >= 1:
        return list(range(clients))
    draws = rng.generator(seed, "participation", round)
    if sampling == "poisson":
        return (torch.rand(clients, generator=draws, dtype=torch.float64) < participation).nonzero()[:, 0].tolist()
    return sorted(torch.randperm(clients, generator=draws)[: clients_a_round(clients, participation)].tolist())


def clients_a_round(clients: int, participation: float) -> int:
    """Return the number of clients in a round: the nearest whole number, halves rounded up, at least one."""
    return max(1, share_of(clients, participation))


def expected_participants(cell: Cell) -> float:
    """Return the expected number of clients sampled for a round."""
    if cell.protocol.sampling == "poisson":
        return cell.training_clients * cell.participation
    return clients_a_round(cell.training_clients, cell.participation)


def assemble(cell: Cell, data: Data, meter: Meter | None = None) -> tuple[Method, Net, Paths]:
    """Return a cell's method, fresh net and paths; raise `Incompatible` if they do not fit together.

    The method's changes to the model, such as a fixed classifier, are timed as phase `net` of `meter`.
    """
    method, setting = cell.method(), setting_of(cell, len(data.classes), data.shape)
    method.check(setting)
    check_size(cell, data)
    with rng.global_rng(cell.seed, "init"):
        net = cell.model.prepare(data.shape, len(data.classes))
        with meter.phase("net") if meter else contextlib.nullcontext():
            net = method.net(net, setting)
    linear = [component.name for component in (method.calibrator, method.personaliser) if component]
    linear += ["diagnostics.spaces"] if cell.diagnostics.spaces else []
    if linear and type(net.head) is not nn.Linear:
        raise Incompatible(f"'{linear[0]}' works on a linear head, not on {type(net.head).__name__}")
    paths = Paths.of(net, method, cell.protocol.rounds)
    paths.check(method, cell.protocol.local_epochs)
    check_freezing(net, method)
    return method, net, paths


def setting_of(cell: Cell, classes: int, shape: tuple[int, int, int]) -> Setting:
    """Return the facts of a cell that components may know before training."""
    return Setting(
        classes=classes,
        shape=shape,
        clients=cell.training_clients,
        participation=cell.participation,
        protocol=cell.protocol,
    )


def check_size(cell: Cell, data: Data) -> None:
    """Raise `UserError` for a model larger than memory, for which the system would kill the process silently."""
    try:
        with rng.global_rng(cell.seed, "init"), torch.device("meta"):
            net = cell.model.build(data.shape, len(data.classes))
        parameters = sum(weight.numel() for weight in net.parameters())
    except Exception as error:
        if "overflow" in str(error):
            raise UserError(f"no memory holds {cell.model.label()}; choose a smaller one") from None
        return  # building it in memory will raise the actual error
    size, memory = parameters * cell.protocol.dtype.itemsize, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise UserError(
            f"the {parameters:,} parameters take {size / 2**30:,.0f} GiB, this machine has {memory / 2**30:,.0f} GiB; "
            f"choose a smaller {cell.model.label()}"
        )


def client_weights(weights: Tree, delta: Tree) -> Tree:
    """Return the client's weights after an update `delta` to the `weights` of its round."""
    return {path: weights[path] + leaf for path, leaf in delta.items()}


class Run:
    """One cell in memory: data, net, state and meter, advanced round by round.

    Also its measurements so far: the curve and other values at evaluated rounds, diagnostics, and model digests.
    """

    def __init__(self, cell: Cell, how: How) -> None:
        self.cell, self.how = cell, how
        self.device = device_of(how.device)
        self.meter = Meter()
        self.curve: Curve = {"round": [], "accuracy": [], "loss": [], "train_loss": []}
        self.seconds_at_round: list[float] = []
        self.measured: diagnostics.Measured = {}
        self.bytes_at_round: list[int] = []
        self.simulated_at_round: list[float] = []  # seconds, under a fleet that acts; zeros without a clock
        self.round_digests: dict[str, str] = {}  # of the models, by evaluated round
        self.stage_digests: dict[str, str] = {}
        self.workers = 1  # maximum number that trained at once
        self.cells_beside = 0  # maximum number of other cells that its machine computed at once, if known
        self.of_one_origin = True  # whether this code on this device computed all of its rounds
        self.trained_by: str | None = None  # key of the cell that trained the model, if another
        self.began_with: Path | None = None  # file that the run resumed from
        with self.meter.phase("prepare"):
            self._prepare()

    def _prepare(self) -> None:
        cell, how = self.cell, self.how
        self.numerics = numerics_of(cell, how)
        if self.numerics == numerics.PORTABLE:
            numerics.check()
        self.measured_round = cell.diagnostics.round or cell.protocol.rounds
        sampled = any(self._participants(round) for round in range(cell.protocol.rounds))
        if not sampled and not cell.method().one_client:
            raise UserError(
                f"protocol.sampling=poisson draws no client in {cell.protocol.rounds} rounds; raise participation"
            )
        watched = self._participants(self.measured_round - 1)
        data = cell.dataset.prepare(how.data)
        self.method, net, self.paths = assemble(cell, data, self.meter)
        diagnostics.check(cell.diagnostics, watched, len(data.classes))
        if diagnostics.measurable(cell.diagnostics, self.paths.own) != cell.diagnostics:
            log.warning("the global model is not measured: %s stays with the clients", min(self.paths.own))
        self.watched = () if self.method.one_client else cell.diagnostics.local_models(watched)
        whole = cell.partition.prepare(data, cell.clients, rng.numpy_generator(cell.seed, "partition"))
        self.digests = {"dataset_digest": data.digest, "partition_digest": whole.digest}
        split, newcomers = split_off_unseen(whole, cell.training_clients, cell.seed)
        net = lay_out(net.to(cell.protocol.dtype), self.device, memory_format(self.device, cell.protocol.precision))
        self.state = State.initial(net, self.method, self.paths, cell.seed)
        device_data = DeviceData(
            data, split, cell.protocol, device=self.device, seed=cell.seed, one_client=self.method.one_client
        )
        diagnostics.check_images(cell.diagnostics, device_data.test.y.cpu())
        self.trainer = LocalTrainer(net, self.method, self.paths, data=device_data, meter=self.meter)
        self.newcomers: LocalTrainer | None = None  # same net and images of clients that never train, uncounted
        if newcomers is not None and not cell.protocol.trial:
            theirs = DeviceData(data, newcomers, cell.protocol, device=self.device, seed=rng.key(cell.seed, "unseen"))
            self.newcomers = LocalTrainer(net, self.method, self.paths, data=theirs, meter=Meter())
        self.fleet = FleetRunner(cell.fleet, self.trainer, cell.seed)
        self.fleet.check(self.state, cell.protocol.rounds, self._participants)
        self.executor = self.local_executor = executor_of(how.executor)(self.trainer)  # it runs in this process
        if cell.diagnostics.spaces:
            diagnostics.spaces(self.trainer, self.state)  # reject a non-linear body before training

    @property
    def finished(self) -> bool:
        """Whether all rounds are done."""
        return self.state.round >= self.cell.protocol.rounds

    def participants(self) -> list[int]:
        """Return the clients of the coming round; [0] if the method trains all clients as one."""
        return [0] if self.method.one_client else self._participants(self.state.round)

    def _participants(self, round: int) -> list[int]:
        cell = self.cell
        return participants(cell.training_clients, cell.participation, cell.seed, round, cell.protocol.sampling)

    @cached_property
    def privacy(self) -> dict[str, float | None]:
        """Epsilon and delta of the whole training; empty if the method gives no privacy guarantee."""
        guard = self.method.guard
        if guard is None:
            return {}
        setting = setting_of(self.cell, self.trainer.data.classes, self.trainer.data.shape)
        epsilon, delta = self.method.ask(guard, "privacy", setting)
        if epsilon > LARGEST:
            raise Incompatible(f"'{guard.name}' gives epsilon={epsilon:.3g}, which protects nothing; raise its noise")
        return {"epsilon": epsilon, "delta": delta}

    def advance(self, tick: Callable[[], None] = lambda: None) -> None:
        """Run one round; `tick` is called after each client."""
        cell, state, meter = self.cell, self.state, self.meter
        clients = self.participants()
        turns = self.fleet.turns(state, clients)
        down = sum(download_bytes(self.trainer, state, clients))
        last, measured = (state.round + 1 == which for which in (cell.protocol.rounds, self.measured_round))
        if measured and cell.diagnostics.penalties:
            with meter.phase("diagnose"):
                self.measured["penalties"] = trace_penalties(self.trainer, state, clients, turns)
        with meter.phase("local"):
            sums, kept = self.executor.run(state, clients, self.watched if measured else (), tick, turns)
        if sums.participants or self.method.every_round:
            with meter.phase("server"):
                self.aggregate(sums)
        count_round(self.trainer, clients, down, sums)
        if cell.fleet.acts:
            count_turns(meter, turns)
        state.round += 1
        if measured and cell.diagnostics.what():
            with meter.phase("diagnose"):
                self.measured |= diagnostics.measure(self.trainer, state, cell.diagnostics, kept, cell.seed)
        every = self.method.calibrates_every
        if every and state.round % every == 0 and not last:
            with meter.phase("calibrate"):
                self._go_on_calibrated()
        if last or state.round % cell.protocol.eval_every == 0:
            self._evaluate(sums.loss / sums.samples if sums.samples else None)

    def aggregate(self, sums: RoundSums) -> None:
        """Update the state from the round's sums; raise `Diverged` if a weight is not finite afterwards."""
        cell, state = self.cell, self.state

        def view(hook: str, name: str) -> Aggregate:
            return Aggregate(
                params=state.params,
                sums=sums.uploads(name),
                server=state.server[name],
                participants=sums.participants,
                clients=cell.training_clients,
                samples=sums.samples,
                protocol=cell.protocol,
                round=state.round,
                rng=rng.generator(cell.seed, hook, name, state.round),
                expected=expected_participants(cell),
            )

        with torch.no_grad():
            now = state.params | state.buffers
            mean, single = sums.mean_delta(now), sums.updates or {}
            if sums.participants and self.method.using("aggregate"):
                mean = self.method.aggregate(single, partial(view, "aggregate"))
            if self.method.sends_messages:
                sent = state.sent | {client: client_weights(now, delta) for client, delta in single.items()}
                state.sent = dict(sorted(sent.items()))  # a hook that sums over them gives the same bits after a resume
            if not sums.participants:
                shared = self.paths.at(state.round, self.trainer.net).shared
                mean = zeros({path: leaf for path, leaf in state.params.items() if path in shared})
            delta, server = self.method.server(mean, partial(view, "server"), empty=not sums.participants)
            now |= add(delta, {path: now[path] for path in delta}) | sums.mean_buffers(state.buffers)
            state.params, state.buffers = (in_layout_of(tree, now) for tree in (state.params, state.buffers))
            state.server = {name: in_layout_of(tree, server[name]) for name, tree in state.server.items()}
            state.refresh_first_row()
        if not finite(state.params):
            raise Diverged(f"round {state.round + 1}: the aggregated weights are not finite")

    def calibrated(self) -> Tree:
        """Return the weights from the method's calibrator, without clients whose updates have all been lost so far."""
        never_heard = self.fleet.never_heard(self.state, self._participants)
        return stages.calibrate(self.trainer, self.state, self.cell.seed, never_heard)

    def _go_on_calibrated(self) -> None:
        """Replace the trained weights by calibrated ones; count the bytes that clients would not receive otherwise."""
        before, after = self.state.params, self.calibrated()
        if not finite(after):
            raise Diverged(f"round {self.state.round}: the calibrated weights are not finite")
        count_sent_weights(self.trainer, before, after)
        self.state.params = in_layout_of(before, after)

    def _evaluate(self, train_loss: float | None) -> None:
        """Score the models after a round, and record the costs so far."""
        state, meter = self.state, self.meter
        with meter.phase("evaluate"):
            scores = score(self.trainer, state)
            self.round_digests[str(state.round)] = state.digest()
        self.curve["round"].append(state.round)
        self.curve["accuracy"].append(scores.get("accuracy"))
        self.curve["loss"].append(scores.get("loss"))
        self.curve["train_loss"].append(train_loss)
        self.seconds_at_round.append(round(sum(meter.seconds.values()), 3))
        self.bytes_at_round.append(meter.bytes)
        if self.cell.fleet.acts:
            self.simulated_at_round.append(meter.simulated_seconds or 0.0)

    def note_peak(self) -> None:
        """Record the peak of a CUDA device's allocator; on CPU a process has only one peak for all its cells."""
        if self.device.type == "cuda":
            self.meter.peak_memory = max(self.meter.peak_memory, torch.cuda.max_memory_allocated(self.device))
