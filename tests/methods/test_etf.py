"""FedETF: its classifier, and whole rounds against NumPy float64."""

import numpy as np
import pytest
import torch

from fedspan.benchmark.errors import Incompatible, UserError
from fedspan.methods.addons.etf import ETF, simplex
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.methods.algorithms.moon import Moon
from tests.helpers import start, toy_cell
from tests.methods.by_hand import (
    ByClass,
    agree,
    counts,
    cross_entropy_slope,
    federated,
    finished,
    trained_by_hand,
)

HEAD, SCALE = "head.weight", "body.3.scale"
DOUBLE = {"precision": "float64"}


def test_a_head_that_the_algorithm_needs_is_not_replaced():
    with pytest.raises(Incompatible, match=r"use algorithm\.representation=projected"):
        start(toy_cell(Moon(representation="body", projection=(4,)), ETF()))
    start(toy_cell(Moon(projection=(4,)), ETF()))


@pytest.mark.parametrize(("classes", "width"), [(2, 2), (3, 5), (10, 10), (10, 64)])
def test_the_classes_are_unit_vectors_as_far_apart_as_they_can_be(classes, width):
    v = simplex(classes, width)
    cosines = torch.full((classes, classes), -1 / (classes - 1), dtype=torch.float64).fill_diagonal_(1)
    assert v.shape == (classes, width)
    torch.testing.assert_close(v @ v.T, cosines, rtol=0, atol=1e-12)
    torch.testing.assert_close(v.sum(0), torch.zeros(width, dtype=torch.float64), rtol=0, atol=1e-12)


def forward(w, x):
    """Return every stage of the net with a projection: hidden, projected, unit, logits."""
    hidden = np.tanh(x @ w["body.0.1.weight"].T + w["body.0.1.bias"])
    projected = hidden @ w["body.1.weight"].T + w["body.1.bias"]
    length = np.linalg.norm(projected, axis=1, keepdims=True)
    return hidden, length, projected / length, w[SCALE] * (projected / length) @ w[HEAD].T


@pytest.mark.parametrize("absent", ["removed", "kept"])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("width", [0, 4])
@pytest.mark.parametrize("parts", [{}, {"partition": ByClass()}], ids=["mixed", "one class each"])
def test_all_rounds_minimise_the_balanced_feature_loss(absent, gamma, width, parts):
    addon = ETF(absent=absent, gamma=gamma, width=width, temperature=2.0)
    run = start(toy_cell(FedAvg(), addon, participation=0.5, protocol=DOUBLE, **parts))

    def local(w, client, round):
        n = counts(run, client) if absent == "removed" else np.maximum(counts(run, client), 1)
        with np.errstate(divide="ignore"):
            prior = gamma * np.log(n) if gamma else 0.0

        def gradient(v, x, y):
            hidden, length, unit, logits = forward(v, x)
            slope = cross_entropy_slope(logits + prior, y) @ v[HEAD]
            in_unit = v[SCALE] * slope
            back = (in_unit - unit * (unit * in_unit).sum(1, keepdims=True)) / length
            grads = {SCALE: np.array([(slope * unit).sum()])}
            grads |= {"body.1.weight": back.T @ hidden, "body.1.bias": back.sum(0)}
            back = (back @ v["body.1.weight"]) * (1 - hidden**2)
            return grads | {"body.0.1.weight": back.T @ x, "body.0.1.bias": back.sum(0)}

        return trained_by_hand(run, w, client, round, gradient, moves=lambda path: path != HEAD)[0]

    expected = federated(run, local)
    agree(finished(run).state.params, expected)


@pytest.mark.parametrize("absent", ["removed", "kept"])
def test_a_client_of_one_class_learns_something_only_if_the_others_are_kept(absent):
    cell = toy_cell(FedAvg(), ETF(absent=absent), partition=ByClass(), protocol={"weight_decay": 0.0})
    run = start(cell)
    still = [(leaf == 0).all() for leaf in run.trainer.train(run.state, 4).delta.values()]
    assert all(still) if absent == "removed" else not any(still)


def test_the_classifier_is_the_same_everywhere_and_never_sent():
    run = start(toy_cell(FedAvg(), ETF(width=4)))
    head = run.state.params[HEAD].clone()
    finished(run)
    assert torch.equal(run.state.params[HEAD], head)
    assert HEAD not in run.paths.shared
    assert SCALE in run.paths.shared, "the temperature is learnt together"
    assert run.state.params[SCALE].item() != 10.0


def test_more_classes_than_dimensions_are_refused():
    with pytest.raises(Incompatible, match=r"'etf' needs 3 orthonormal columns .*use addon\.etf\.width=3 or more"):
        start(toy_cell(FedAvg(), ETF(width=2)))


def test_a_temperature_of_zero_is_refused():
    with pytest.raises(UserError, match=r"addon\.etf\.temperature must be positive, got 0"):
        ETF(temperature=0.0)
