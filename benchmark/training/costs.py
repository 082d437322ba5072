"""Costs of a cell from shapes alone: parameters, bytes, FLOPs and memory, without data and without training.

The net is on the device `meta`, which tracks shapes and computes no values. Of the dataset only shape, classes and
number of images matter. The number of images per client is unknown without data, so clients are assumed to hold equal
shares, all batches to be full, and sampled clients to hold their share of the images.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from fedspan.benchmark.component import Component
from fedspan.benchmark.data.batches import DeviceData
from fedspan.benchmark.errors import Incompatible, UserError
from fedspan.benchmark.head import in_head
from fedspan.benchmark.method import Method
from fedspan.benchmark.net import parameters_of
from fedspan.benchmark.spec.cell import Cell
from fedspan.benchmark.spec.plan import PlannedCell
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.task import Data, Extent, Images, Split
from fedspan.benchmark.training.executors.round_sums import RoundSums
from fedspan.benchmark.training.local import ClientResult, LocalTrainer
from fedspan.benchmark.training.meter import Meter
from fedspan.benchmark.training.run import assemble, expected_participants
from fedspan.benchmark.training.state import State
from fedspan.benchmark.training.traffic import classifier_flops, download_bytes, model_bytes
from fedspan.benchmark.tree import nbytes

STAGE = "computed"  # name of these numbers in a table's metric, beside the stages of records
ASSUMES = (
    "Computed from shapes, at the scale of the papers, not measured: clients with equal shares of all training images, "
    "whole batches, weights of the protocol's width; compute is that of the training steps."
)


@dataclass(frozen=True)
class Calibration:
    """Costs of all calibrations of a cell: bytes over all clients, and FLOPs, None if the calibrator reports none."""

    up: int = 0
    down: int = 0
    flops: int | None = 0


@dataclass(frozen=True)
class Costs:
    """Costs of a cell. Bytes and FLOPs are totals over all clients and all rounds unless noted.

    `memory` is the peak number of bytes in the tensors of a training step.
    """

    parameters: int
    features: int
    classes: int
    images: int  # per round, over all local epochs and clients
    rounds: int
    clients: int
    clients_a_round: float
    up: int  # bytes of a client that takes part in every round
    down: int
    head_bytes: int  # of the classifier, if it travels
    head_flops: float  # per trained image, of the classifier's gradient and update
    round_flops: int  # of one round
    memory: int
    calibration: Calibration

    @property
    def classifier_bytes(self) -> float:
        """Bytes of the mean client for the classifier alone, up and down, as counted in SphereFed 2022, Table 1."""
        rounds = self.rounds * self.clients_a_round / self.clients
        return 2 * rounds * self.head_bytes + self.calibration.up / self.clients

    def scores(self) -> dict[str, float]:
        """Return the numbers that a table can show, by name, without the unknown ones."""
        calibrations = self.calibration.up + self.calibration.down
        found = {
            "parameters": float(self.parameters),
            "features": float(self.features),
            "classes": float(self.classes),
            "bytes": float(self.clients_a_round * (self.up + self.down) + calibrations),
            "bytes_per_client_round": (self.up + self.down) / self.rounds,
            "round_gflop": self.round_flops / 1e9,
            "train_gflop": self.rounds * self.round_flops / 1e9,
            "memory_bytes": float(self.memory),
            "classifier_megabytes": self.classifier_bytes / 1e6,
        }
        if self.calibration.flops is not None:
            trained = self.head_flops * self.images * self.rounds
            found["calibration_gflop"] = self.calibration.flops / 1e9
            found["classifier_gflop"] = (trained + self.calibration.flops) / 1e9
        return found


def costs(cell: Cell, data_folder: Path) -> Costs:
    """Return the costs of a cell.

    Raises `UserError` for a fleet, or if the dataset's extent is known only from files that are missing, and
    `Incompatible` for a cell that cannot run.
    """
    if cell.fleet.acts:
        raise UserError(f"costs under fleet={cell.fleet.name} depend on its draws, not on shapes alone")
    extent = _extent(cell, data_folder)
    data = _one_image(extent)
    trainer, state = without_values(_quick_to_make(cell), data)
    net, steps, alone = trainer.net, trainer.step_costs(state), trainer.method.one_client
    clients = cell.training_clients
    here = 1 if alone else expected_participants(cell)
    trained = extent.train * (1 - cell.protocol.validation) * (clients / cell.clients)
    held = trained * (1.0 if alone else here / clients)  # images of the sampled clients
    up, down = (0, 0) if alone else _traffic(trainer, state, cell.protocol.rounds)
    head = {path: leaf for path, leaf in state.params.items() if in_head(path)}
    return Costs(
        parameters=sum(leaf.numel() for leaf in parameters_of(net).values()),
        features=net.head.in_features,
        classes=extent.classes,
        images=round(held * sum(epochs for epochs, _, _ in steps)),
        rounds=cell.protocol.rounds,
        clients=1 if alone else clients,
        clients_a_round=here,
        up=up,
        down=down,
        head_bytes=0 if alone else nbytes({path: head[path] for path in head if path in trainer.paths.shared}),
        head_flops=classifier_flops(trainer, head),
        round_flops=round(held * sum(epochs * flops for epochs, flops, _ in steps) / cell.protocol.batch_size),
        memory=max(memory for _, _, memory in steps),
        calibration=_calibration(cell, trainer, state, round(trained), extent.classes),
    )


def _calibration(cell: Cell, trainer: LocalTrainer, state: State, images: int, classes: int) -> Calibration:
    """Return the costs of a cell's calibrations, with `images` training images of all clients."""
    method, features, rounds = trainer.method, trainer.net.head.in_features, cell.protocol.rounds
    if not method.calibrator:
        return Calibration()
    clients = cell.training_clients
    told = method.ask(method.calibrator, "calibration_cost", images, clients, features, classes)
    numbers, each = told or (0, None)
    times = 1 + ((rounds - 1) // method.calibrates_every if method.calibrates_every else 0)
    flops = None if each is None else times * each
    if method.one_client:
        return Calibration(flops=flops)
    kept = {path: leaf for path, leaf in state.params.items() if in_head(path) and path not in trainer.paths.shared}
    model = model_bytes(trainer, replace(state, round=rounds))
    return Calibration(
        up=times * numbers * cell.protocol.dtype.itemsize,
        down=clients
        * (times * model + (times - 1) * nbytes(kept)),  # a head that is not shared travels when calibrated
        flops=flops,
    )


def _traffic(trainer: LocalTrainer, state: State, rounds: int) -> tuple[int, int]:
    """Return the bytes (up, down) of a client that takes part in every round; warm-up rounds differ from others."""
    warm = trainer.paths.warm_rounds
    up = down = 0
    for first, times in ((0, warm), (warm, rounds - warm)):
        if times:
            now, sums = replace(state, round=first), RoundSums()
            sums.add(finished := untrained_result(trainer, now))
            later = replace(now, rows={0: finished.row})
            [once], [each] = (download_bytes(trainer, at, [0]) for at in (now, later))
            up, down = up + times * sums.upload_bytes, down + once + (times - 1) * each
    return up, down


def without_values(cell: Cell, data: Data) -> tuple[LocalTrainer, State]:
    """Return a cell's trainer on the device `meta` and its initial state; raise `Incompatible`."""
    method, net, paths = assemble(cell, data)
    net = net.to("meta", cell.protocol.dtype)
    trainer = LocalTrainer(net, method, paths, data=shapes_alone(cell, data, method), meter=Meter())
    return trainer, State.initial(net, method, paths)


def untrained_result(trainer: LocalTrainer, state: State) -> ClientResult:
    """Return a client's result of a round as if it had trained; raise `Incompatible` if it may not be sent."""
    return trainer.result(state, 0, trainer.first_visit(state), steps=1, images=1, loss=0.0)


def _quick_to_make(cell: Cell) -> Cell:
    """Return a cell whose net has the same shapes and weights that are quick to initialise."""

    def quick(component: Component) -> Component:
        known = component.same_shapes
        changes = {name: known[name][now] for name in known if (now := getattr(component, name)) in known[name]}
        return replace(component, **changes)  # type: ignore[type-var]

    return replace(cell, algorithm=quick(cell.algorithm), addons=tuple(map(quick, cell.addons)))


def shapes_alone(cell: Cell, data: Data, method: Method) -> DeviceData:
    """Return the data of a cell on the device `meta`: one image per client, none held out."""
    split = Split((np.arange(1),) * cell.clients)
    protocol = replace(cell.protocol, validation=0.0)
    return DeviceData(data, split, protocol, device=torch.device("meta"), seed=cell.seed, one_client=method.one_client)


def _extent(cell: Cell, folder: Path) -> Extent:
    if (known := cell.dataset.extent()) is not None:
        return known
    data = cell.dataset.prepare(folder)
    return Extent(data.shape, len(data.classes), len(data.train), len(data.test))


def _one_image(extent: Extent) -> Data:
    """Return a dataset of the given extent with a single image."""
    channels, height, width = extent.shape
    image = Images(torch.zeros(1, height, width, channels, dtype=torch.uint8), torch.zeros(1, dtype=torch.long))
    names = tuple(map(str, range(extent.classes)))
    return Data(train=image, test=image, classes=names, mean=(0.0,) * channels, std=(1.0,) * channels, digest="")


def of_all(cells: Sequence[PlannedCell]) -> list[dict[str, float] | str]:
    """Return each cell's costs by name, at the scale of the papers, or a message that says why there are none."""
    known: dict[str, dict[str, float] | str] = {}
    found = []
    for planned in cells:
        cell = planned.origin
        kind = json.dumps({k: v for k, v in cell.what.items() if k not in ("seed", "partition")}, sort_keys=True)
        if kind not in known:
            try:
                known[kind] = costs(cell, How.of(planned.config).data).scores()
            except (UserError, Incompatible) as error:
                known[kind] = str(error)
        found.append(known[kind])
    return found
