"""FedALA by hand: what a client starts from, how it learns that, and which model is its own."""

import numpy as np
import pytest
import torch

from fedspan.benchmark.errors import Incompatible
from fedspan.benchmark.rng import generator
from fedspan.benchmark.training import stages
from fedspan.benchmark.tree import under
from fedspan.methods.addons.babu import BABU
from fedspan.methods.addons.etf import ETF
from fedspan.methods.addons.spherefed import SphereFed
from fedspan.methods.algorithms.fedala import FedALA
from tests.helpers import start, toy_cell, trained
from tests.methods.by_hand import (
    PLAIN,
    agree,
    fresh,
    mean,
    minus,
    numbers,
    one_hot,
    plain_gradient,
    sizes,
    softmax,
    trained_by_hand,
)
from tests.toys import NormNet

TOPS = {1: ["head.weight", "head.bias"], 2: ["body.1.weight", "body.1.bias", "head.weight", "head.bias"]}


@pytest.mark.parametrize("addon", [BABU(), SphereFed(), ETF()], ids=["babu", "spherefed", "etf"])
def test_layers_that_all_clients_have_alike_are_not_mixed(addon):
    with pytest.raises(Incompatible, match=r"none is trained here.*; use algorithm\.layers=2 or more"):
        start(toy_cell(FedALA(), addon))
    start(toy_cell(FedALA(layers=2), addon))


class ALA:
    """`TsingZ0/FedALA`, system/utils/ALA.py, in NumPy; a random share, and short batches too."""

    def __init__(self, run, client):
        self.run, self.client, self.a = run, client, run.cell.algorithm
        self.weights, self.start_phase = None, True

    def aggregate(self, hook, round, received, local):
        """Return the initialised model, whose lower layers are those received."""
        top = TOPS[self.a.layers]
        if all((received[path] == local[path]).all() for path in top):
            return received
        x, y = self.images()
        rows = torch.randperm(len(y), generator=generator(self.run.cell.seed, hook, "fedala", round, self.client))
        rows = rows[: max(1, int(self.a.share * len(y)))].numpy()
        if self.weights is None:
            self.weights = {path: np.ones_like(local[path]) for path in top}
        self.losses, size = [], self.run.cell.protocol.batch_size
        while True:
            for first in range(0, len(rows), size):
                batch = rows[first : first + size]
                here = self.mixed(received, local)
                chances = softmax(PLAIN.logits(here, x[batch]))
                loss = -(np.log(chances) * one_hot(y[batch], chances.shape[1])).sum(1).mean()
                grads = plain_gradient(here, x[batch], y[batch])
                for path in top:
                    step = self.a.eta * grads[path] * (received[path] - local[path])
                    self.weights[path] = np.clip(self.weights[path] - step, 0, 1)
            self.losses.append(loss)
            if not self.start_phase or len(self.losses) == self.a.passes:
                break
            if len(self.losses) > 10 and np.std(self.losses[-10:]) < self.a.threshold:
                break
        self.start_phase = False
        return self.mixed(received, local)

    def mixed(self, received, local):
        return received | {path: local[path] + (received[path] - local[path]) * w for path, w in self.weights.items()}

    def images(self):
        data = self.run.trainer.data
        images = data.train.take(data.indices[self.client])
        return data.normalise(images.x).numpy().astype(np.float64).reshape(len(images), -1), images.y.numpy()


def by_hand(algorithm, **parts):
    """Train a run beside its copy in NumPy; return both, and the passes of each client's first mixing."""
    run = fresh(algorithm, protocol={"rounds": 4, "lr": 0.3, "momentum": 0.0}, **parts)
    w = numbers(run.state.params)
    modules = [ALA(run, client) for client in range(6)]
    models, passes = [w] * 6, {}
    while not run.finished:
        round, chosen, ends = run.state.round, run.participants(), []
        for client in chosen:
            began = modules[client].start_phase
            start = modules[client].aggregate("client_start", round, w, models[client])
            if began and not modules[client].start_phase:
                passes[client] = len(modules[client].losses)
            models[client] = trained_by_hand(run, start, client, round)[0]
            ends.append(minus(models[client], w))
        w = {path: w[path] + change for path, change in mean(ends, sizes(run, chosen)).items()}
        run.advance()
        agree(run.state.params, w)
    return run, w, modules, models, passes


@pytest.mark.parametrize("layers", [1, 2])
def test_it_is_the_authors_code_round_by_round(layers):
    run, w, modules, models, passes = by_hand(FedALA(layers=layers, share=0.7, eta=2.0, threshold=0.01))
    assert min(passes.values()) > 10
    assert len(set(passes.values())) > 1, "nobody waits for convergence"
    for client in passes:
        tree = run.state.row(client).states["fedala"]
        agree(under("weight", tree), modules[client].weights)
        agree(under("model", tree), {path: models[client][path] for path in TOPS[layers]})
    assert any(((leaf > 0) & (leaf < 1)).any() for leaf in modules[next(iter(passes))].weights.values())
    for client in range(6):  # those that never took part too
        stages.personalise(run.trainer, run.state, client, run.cell.seed)
        agree(run.trainer.params, modules[client].aggregate("own", run.state.round, w, models[client]))


def test_passes_bound_the_first_learning():
    *_, passes = by_hand(FedALA(threshold=1e-9, passes=12))
    assert set(passes.values()) == {12}


def test_at_rate_nearly_zero_everybody_has_the_global_model():
    run = fresh(FedALA(eta=1e-12))
    while not run.finished:
        run.advance()
    for client in range(6):
        stages.personalise(run.trainer, run.state, client, 0)
        agree(run.trainer.params, numbers(run.state.params), 1e-9)


def test_only_the_learnt_layers_are_differentiated():
    """The gradient of the head alone costs less than that of the whole net, on as many images."""
    top, whole = (trained(toy_cell(FedALA(layers=layers))).meter.flops["hooks"] for layers in (1, 2))
    assert top < whole


def test_the_mixture_has_the_received_statistics_of_batchnorm():
    run = trained(toy_cell(FedALA(), model=NormNet()))
    stages.personalise(run.trainer, run.state, 5, 0)
    agree(run.trainer.buffers, numbers(run.state.buffers), 0.0)
