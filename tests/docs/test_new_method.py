"""The recipes of docs/new-method.md do what they say."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fedspan.benchmark import registry
from fedspan.benchmark.training.scoring import score_stages
from fedspan.methods.algorithms.fedavg import FedAvg
from tests.helpers import start, toy_cell, trained, weights
from tests.methods.by_hand import DOUBLE, agree, batches, minus, numbers, plain_gradient, softmax, trained_by_hand
from tests.methods.by_hand import fresh as fresh_run
from tests.toys import NormNet

PAGE = Path(__file__).parents[2] / "docs" / "new-method.md"
RECIPES = re.findall(r"```python\n(.*?)```", PAGE.read_text().split("## Recipes")[1], re.DOTALL)
NAMES = [re.search(r"@(?:algorithm|addon)\(\"(\w+)\"\)", source)[1] for source in RECIPES]


@pytest.fixture
def recipe(monkeypatch):
    """Return a function that makes the component of a recipe, which no registry keeps."""
    monkeypatch.setattr(registry, "_plugins", {kind: dict(known) for kind, known in registry._plugins.items()})

    def make(name, **settings):
        known = {}
        exec(compile(RECIPES[NAMES.index(name)], f"{PAGE}: {name}", "exec"), known)
        return next(value for value in known.values() if getattr(value, "name", None) == name)(**settings)

    return make


def stack(component):
    return (component,) if component.kind == "algorithm" else (FedAvg(), component)


def ends(run, clients, w):
    """Return the clients' updates of the round that a run is in, by hand."""
    return [minus(trained_by_hand(run, w, client, run.state.round)[0], w) for client in clients]


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_trains_and_changes_something(recipe, name):
    cell = toy_cell(*stack(recipe(name)), model=NormNet(), protocol={"rounds": 2, "local_epochs": 1})
    mine, plain = trained(cell), trained(toy_cell(model=NormNet(), protocol={"rounds": 2, "local_epochs": 1}))
    assert weights(mine) != weights(plain)


@pytest.mark.parametrize(("name", "average"), [("uniform", np.mean), ("median", None)])
def test_uniform_and_median_of_the_updates(recipe, name, average):
    run = fresh_run(recipe(name), participation=0.5, protocol={"rounds": 1})
    w = numbers(run.state.params)
    updates = ends(run, run.participants(), w)
    assert len(updates) == 3
    average = average or np.median
    run.advance()
    agree(run.state.params, {path: w[path] + average([each[path] for each in updates], axis=0) for path in w})


def test_the_second_model_moves_beside_the_first_and_is_the_clients_own(recipe):
    run = start(toy_cell(recipe("beside", pull=0.5), participation=1.0, protocol=DOUBLE | {"rounds": 1}))
    w = numbers(run.state.params)
    lr = run.cell.protocol.lr_at(0)
    run.advance()
    plain = start(toy_cell(protocol=DOUBLE | {"rounds": 1}))
    plain.advance()
    agree(run.state.params, numbers(plain.state.params), 0.0)
    v = dict(w)
    for x, y in batches(run, 5, 0):
        g = plain_gradient(v, x, y)
        v = {path: v[path] - lr * (g[path] + 0.5 * (v[path] - w[path])) for path in v}
    kept = run.state.row(5).states["beside"]
    agree({path.removeprefix("w/"): leaf for path, leaf in kept.items()}, v)
    scores = score_stages(run)
    assert scores["personalised"]["client_accuracy"] != scores["trained"]["accuracy"]


def test_prototypes_are_the_class_means_over_all_clients_images(recipe):
    run = start(toy_cell(FedAvg(), recipe("prototypes", weight=0.0), protocol=DOUBLE | {"rounds": 1}))
    sums, data = 0, run.trainer.data
    for client in range(6):
        run.trainer.train(run.state, client)
        x = data.normalise(data.train.take(data.indices[client]).x)
        with torch.no_grad():
            features, _ = run.trainer.net.eval()(x)
        sums = sums + torch.eye(3, dtype=torch.float64)[data.train.y[data.indices[client]]].T @ features
    run.advance()
    torch.testing.assert_close(run.state.server["prototypes"]["sums"], sums, rtol=1e-12, atol=1e-12)


def test_noise_is_keyed_by_the_round(recipe):
    def moved(rounds):
        noisy, plain = (
            start(toy_cell(*with_noise, protocol=DOUBLE | {"rounds": 3}))
            for with_noise in ((FedAvg(), recipe("noisy", deviation=1.0)), (FedAvg(),))
        )
        for run in (noisy, plain):
            run.state.round = rounds
            run.advance()
        return {path: noisy.state.params[path] - plain.state.params[path] for path in plain.state.params}

    first, again, other = moved(0), moved(0), moved(1)
    assert all(torch.equal(first[path], again[path]) for path in first)
    assert not any(torch.allclose(first[path], other[path]) for path in first)
    every = torch.cat([leaf.flatten() for leaf in first.values()])
    assert abs(float(every.std()) - 1) < 0.15


def test_signs_take_one_bit_each(recipe):
    run = start(toy_cell(FedAvg(), recipe("signs"), protocol={"rounds": 1}))
    run.advance()
    numbers_sent, tensors = sum(leaf.numel() for leaf in run.state.params.values()), len(run.state.params)
    each = -(-(numbers_sent + 32 * tensors) // 8)
    assert run.meter.bytes_up == 6 * each


def test_balanced_classes_weigh_the_same(recipe):
    class Step:
        counts, y = torch.tensor([8.0, 1.0, 0.0]), torch.tensor([0, 0, 1])
        logits = torch.tensor([[1.0, 0.0, 2.0], [0.5, 0.0, 0.0], [0.0, 3.0, 1.0]])

    each = -np.log(softmax(Step.logits.double().numpy())[[0, 1, 2], Step.y])
    w = np.array([1 / 8, 1 / 8, 1.0])
    assert float(recipe("balanced").loss(Step())) == pytest.approx((w * each).sum() / w.sum(), rel=1e-6)
