"""Stages after training: calibration and personalisation."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from fedspan.benchmark.component import Component
from fedspan.benchmark.rng import generator
from fedspan.benchmark.training.client_view import views
from fedspan.benchmark.training.evaluation import outputs
from fedspan.benchmark.training.local import LocalTrainer, Visit
from fedspan.benchmark.training.state import State
from fedspan.benchmark.training.traffic import count_calibration
from fedspan.benchmark.tree import Tree, to_device


@torch.no_grad()
def client_features(trainer: LocalTrainer, client: int) -> tuple[Tensor, Tensor]:
    """Return (features [n, d], labels [n]) of a client's unaugmented training images under the loaded net."""
    data = trainer.data
    rows = outputs(trainer, data.train.take(data.indices[client].to(data.device)), "features")
    features, _, labels = zip(*rows, strict=True)
    return torch.cat(features), torch.cat(labels)


@torch.no_grad()
def calibrate(trainer: LocalTrainer, state: State, seed: int, without: Collection[int] = ()) -> Tree:
    """Return the weights from the method's calibrator; the meter counts the communication.

    Statistics are summed in float64, client by client, over the images of all clients but those in `without`; the
    weights stay as they are if no client is left.
    """
    component = trainer.method.calibrator
    assert component is not None
    data, numbers = trainer.data, 0
    sums: Tree = {}
    parts: list[tuple[Tensor, Tensor]] = []
    clients = [client for client in range(data.clients) if client not in without]
    if not clients:
        return state.params
    calls = [(trainer, state, client) for client in clients]
    costs = [float(len(data.indices[client])) for client in clients]
    held = 8 * trainer.net.head.in_features * (trainer.net.head.in_features + data.classes)
    for found in trainer.each(state, _client_statistics, calls, costs, held):
        if isinstance(found, tuple):
            parts.append(found)
            numbers += sum(leaf.numel() for leaf in found)
            continue
        numbers += sum(leaf.numel() for leaf in found.values())
        for path, leaf in found.items():
            sums[path] = sums[path].add_(leaf) if path in sums else leaf
    if component.pools:
        sums = {
            name: torch.cat(part) for name, part in zip(("features", "labels"), zip(*parts, strict=True), strict=True)
        }
    draws = generator(seed, "calibrate", component.name, state.round)
    with trainer.meter.phase("calibrate_server"), trainer.meter.step("calibrate", "server"):
        params: Tree = trainer.method.ask(component, "calibrate", state.params, sums, draws)
    count_calibration(trainer, state, len(clients), numbers)
    return params


def _own(trainer: LocalTrainer, owner: Component, state: State, client: int, params: Tree, buffers: Tree) -> Tree:
    """Return a client's own weights and statistics from component `owner`; only lasting trees are available."""
    row = state.row(client)
    visit = Visit(
        start=params,
        start_buffers=buffers,
        counts=trainer.data.counts(client),
        round=state.round,
        lr=trainer.protocol.lr_at(state.round - 1),
        broadcast={
            name: trainer.method.ask(component, "broadcast", state.server[name])
            for component in trainer.method.components
            if (name := component.name) in state.lasting
        },
        states={name: to_device(tree, trainer.data.device) for name, tree in row.states.items()},
        position=trainer.position(trainer.data.size(client)),
    )
    local = views(trainer, "own", client, visit, params, buffers)(owner.name)
    found: Tree = trainer.method.ask(owner, "own", params, local)
    return found


@torch.no_grad()
def _client_statistics(trainer: LocalTrainer, state: State, client: int) -> Tree | tuple[Tensor, Tensor]:
    """Return a client's upload for a calibration: its statistics, or (features, labels) if those are pooled."""
    component = trainer.method.calibrator
    assert component is not None
    trainer.load(state, state.first_row)
    features, labels = client_features(trainer, client)
    if component.pools:
        return features, labels
    with trainer.meter.step("calibrate", str(len(labels))):
        stats: Tree = trainer.method.ask(component, "stats", features.double(), labels, trainer.data.classes)
    return stats


@torch.no_grad()
def personalise(trainer: LocalTrainer, state: State, client: int, seed: int) -> None:
    """Load the client's model, personalised on its own training images."""
    params, buffers = trainer.load(state, state.row(client))
    if trainer.method.own_component is not None:
        theirs = _own(trainer, trainer.method.own_component, state, client, params, buffers)
        trainer.put(theirs)
        params = {path: theirs.get(path, leaf) for path, leaf in params.items()}
    component = trainer.method.personaliser
    if component is None:
        return
    features, labels = client_features(trainer, client)
    draws = generator(seed, "personalise", component.name, client)
    classes = trainer.data.classes
    with trainer.meter.step("personalise", str(len(labels))):
        personal = trainer.method.ask(component, "personalise", params, features, labels, classes, draws)
    trainer.put(personal)
