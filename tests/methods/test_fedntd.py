import numpy as np
import pytest

from fedspan.methods.algorithms.fedntd import FedNTD
from tests.helpers import start, toy_cell
from tests.methods.by_hand import (
    PLAIN,
    ByClass,
    agree,
    cross_entropy_slope,
    federated,
    finished,
    fresh,
    softmax,
    trained_by_hand,
)


def not_true(logits, y, tau):
    """Return the softmax of logits / tau over the classes but y, [n, C] with 0 at y."""
    others = logits / tau
    others[np.arange(len(y)), y] = -np.inf
    return softmax(others)


@pytest.mark.parametrize(("beta", "tau"), [(1.0, 1.0), (0.3, 3.0)])
@pytest.mark.parametrize("parts", [{}, {"partition": ByClass()}], ids=["mixed", "one class each"])
def test_all_rounds_distil_the_global_model_s_view_of_the_other_classes(beta, tau, parts):
    run = fresh(FedNTD(beta=beta, tau=tau), **parts)

    def local(w, client, round):
        def gradient(v, x, y):
            logits = PLAIN.logits(v, x)
            q_local, q_global = not_true(logits, y, tau), not_true(PLAIN.logits(w, x), y, tau)
            slope = beta * (q_local - q_global) / tau / len(y)
            return PLAIN.gradient(v, x, cross_entropy_slope(logits, y) + slope)

        return trained_by_hand(run, w, client, round, gradient)[0]

    expected = federated(run, local)
    agree(finished(run).state.params, expected)


def test_the_first_step_of_a_round_is_fedavg_s():
    """There the local model is the global one, so the divergence has no slope."""
    one = {"local_epochs": 1, "batch_size": 100, "rounds": 1, "precision": "float64"}
    mine, plain = (start(toy_cell(algorithm, protocol=one)) for algorithm in (FedNTD(beta=5.0), None))
    a, b = (run.trainer.train(run.state, 5).delta for run in (mine, plain))
    agree(a, {path: leaf.numpy() for path, leaf in b.items()}, 1e-12)
