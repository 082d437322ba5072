"""The example plugin with the hook `own`: plain SGD on a client's own images, by hand."""

import dataclasses
import importlib.util
from pathlib import Path

import pytest
import torch

from fedspan.benchmark import registry
from fedspan.benchmark.rng import generator
from fedspan.benchmark.training import stages
from fedspan.methods.algorithms.fedavg import FedAvg
from tests.helpers import start, toy_cell
from tests.methods.by_hand import DOUBLE, agree, numbers, plain_gradient, plus
from tests.toys import NormNet

FILE = Path(__file__).parents[2] / "examples" / "plugin" / "fedspan_example_finetune.py"


@pytest.fixture
def finetune(monkeypatch):
    """Return the add-on, which no registry keeps."""
    monkeypatch.setattr(registry, "_plugins", {kind: dict(known) for kind, known in registry._plugins.items()})
    spec = importlib.util.spec_from_file_location("example_finetune", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FineTune


def test_each_client_goes_on_by_plain_sgd_from_the_global_model(finetune):
    addon = finetune(epochs=2, batch_size=7, lr=0.1)
    run = start(toy_cell(FedAvg(), addon, protocol=DOUBLE))
    while not run.finished:
        run.advance()
    data = run.trainer.data
    for client in (0, 5):
        w, rng = numbers(run.state.params), generator(run.cell.seed, "own", "finetune", run.state.round, client)
        images = data.train.take(data.indices[client])
        x, y = data.normalise(images.x).numpy().reshape(len(images), -1), images.y.numpy()
        for _ in range(2):
            for rows in torch.randperm(len(y), generator=rng).split(7):
                w = plus(w, plain_gradient(w, x[rows.numpy()], y[rows.numpy()]), -0.1)
        stages.personalise(run.trainer, run.state, client, run.cell.seed)
        agree(run.trainer.params, w)


def test_statistics_are_tuned_too_and_the_trained_model_is_shared(finetune):
    addon = finetune()
    cell = toy_cell(FedAvg(), addon, model=NormNet())
    assert not addon.trains
    assert cell.train_key == dataclasses.replace(cell, addons=()).train_key
    run = start(cell)
    stages.personalise(run.trainer, run.state, 5, 0)
    before = run.state.buffers["body.1.running_mean"]
    assert not torch.allclose(run.trainer.buffers["body.1.running_mean"], before)
