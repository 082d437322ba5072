import numpy as np
import pytest
import torch

from fedspan.benchmark.errors import HookError
from fedspan.methods.algorithms.feddisco import FedDisco
from tests.helpers import toy_cell, trained
from tests.methods.by_hand import ByClass, agree, counts, fresh, mean, minus, numbers, plus, trained_by_hand


def difference(shares, metric):
    """`MediaBrain-SJTU/FedDisco`, disco.py, against the uniform distribution."""
    uniform = np.ones(shares.shape[1]) / shares.shape[1]
    if metric == "kl":
        terms = np.where(shares > 0, shares * np.log(np.where(shares > 0, shares, 1) / uniform), 0)
        return terms.sum(1) / terms.sum()
    if metric == "cosine":
        return 1 - shares @ uniform / (np.linalg.norm(shares, axis=1) * np.linalg.norm(uniform))
    return np.linalg.norm(shares - uniform, ord={"l1": 1, "l2": 2}[metric], axis=1)


def adjusted(held, metric, a, b):
    """Return the authors' weights of clients that hold `held` [m, classes] images."""
    n = held.sum(1)
    weights = np.maximum(n / n.sum() - a * difference(held / n[:, None], metric) + b, 0)
    return weights / weights.sum()


@pytest.mark.parametrize("metric", ["kl", "l1", "l2", "cosine"])
def test_weights_are_those_of_the_authors_code(metric):
    held = np.array([[5, 5, 5], [1, 0, 0], [20, 1, 9], [0, 12, 4]])
    ours = FedDisco(a=0.4, b=0.2, metric=metric).weights(torch.tensor(held, dtype=torch.float64), 999).numpy()
    np.testing.assert_allclose(ours / ours.sum(), adjusted(held, metric, 0.4, 0.2), rtol=1e-12)


def test_balanced_clients_alone_weigh_by_their_images():
    held = torch.tensor([[4.0, 4.0], [1.0, 1.0]], dtype=torch.float64)
    assert FedDisco(a=0.5, b=0.0).weights(held, 10).tolist() == [0.8, 0.2]


def test_all_rounds_average_by_these_weights():
    run = fresh(FedDisco(a=0.3, b=0.1), participation=0.5)
    w = numbers(run.state.params)
    while not run.finished:
        chosen = run.participants()
        ends = [minus(trained_by_hand(run, w, client, run.state.round)[0], w) for client in chosen]
        weights = adjusted(np.array([counts(run, client) for client in chosen]), "kl", 0.3, 0.1)
        w = plus(w, mean(ends, weights))
        run.advance()
        agree(run.state.params, w)


def test_where_nobody_has_a_weight_the_cell_ends_with_that_line():
    with pytest.raises(HookError, match=r"'feddisco', weights .* not all 0: all of them are 0"):
        trained(toy_cell(FedDisco(a=9.0, b=0.0, metric="l1"), partition=ByClass()))
