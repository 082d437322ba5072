import numpy as np
import pytest

from fedspan.benchmark.training.scoring import score_stages
from fedspan.benchmark.tree import digest, under
from fedspan.methods.algorithms.ditto import Ditto
from tests.helpers import start, toy_cell, trained
from tests.methods.by_hand import (
    DOUBLE,
    agree,
    batches,
    fresh,
    mean,
    minus,
    norm,
    numbers,
    plain_gradient,
    plus,
    sizes,
    trained_by_hand,
)
from tests.toys import NormNet

CLIENTS = range(6)
PLAIN_SGD = {"momentum": 0.0, "weight_decay": 0.0, "rounds": 4}


def own(run, client):
    return under("v", run.state.row(client).states["ditto"])


@pytest.mark.parametrize("lam", [0.1, 2.0])
def test_all_rounds_are_those_of_the_released_code_under_plain_sgd(lam):
    """`litian96/ditto`, flearn/trainers_MTL/ditto.py, in NumPy; weights in the mean and sampling are ours."""
    run = fresh(Ditto(lam=lam), protocol=PLAIN_SGD)
    global_model, lr = numbers(run.state.params), run.cell.protocol.lr
    local_models = dict.fromkeys(CLIENTS, global_model)
    while not run.finished:
        diffs, indices = [], run.participants()
        for idx in indices:
            w_global_idx, v = dict(global_model), dict(local_models[idx])
            for x, y in batches(run, idx, run.state.round):
                grads = plain_gradient(v, x, y)
                for layer in v:
                    eff_grad = grads[layer] + lam * (v[layer] - global_model[layer])
                    v[layer] = v[layer] - lr * eff_grad
                w_global_idx = plus(w_global_idx, plain_gradient(w_global_idx, x, y), -lr)
            local_models[idx] = v
            diffs.append(minus(w_global_idx, global_model))
        global_model = plus(global_model, mean(diffs, sizes(run, indices)))
        run.advance()
        agree(run.state.params, global_model)
        for client in CLIENTS:
            agree(own(run, client), local_models[client])


def test_with_momentum_and_decay_the_own_model_steps_as_the_other_one():
    run = fresh(Ditto(lam=0.5), protocol={"momentum": 0.9, "weight_decay": 0.01, "schedule": "cosine", "rounds": 3})
    w = numbers(run.state.params)
    mine = dict.fromkeys(CLIENTS, w)
    while not run.finished:
        here = {path: leaf.copy() for path, leaf in numbers(run.state.params).items()}

        def pulled(v, x, y, here=here):
            return plus(plain_gradient(v, x, y), minus(v, here), 0.5)

        for client in run.participants():
            mine[client], _ = trained_by_hand(run, mine[client], client, run.state.round, gradient=pulled)
        run.advance()
        for client in CLIENTS:
            agree(own(run, client), mine[client])


def test_the_global_model_is_fedavgs_bit_for_bit():
    mine, plain = (trained(toy_cell(a, model=NormNet(), participation=0.5)) for a in (Ditto(), None))
    assert mine.curve == plain.curve
    assert mine.meter.bytes == plain.meter.bytes
    assert digest(mine.state.params | mine.state.buffers) == digest(plain.state.params | plain.state.buffers)


def test_without_a_pull_the_own_model_is_that_of_training_alone():
    run = fresh(Ditto(lam=0.0), participation=1.0, protocol={"rounds": 2})
    w = numbers(run.state.params)
    alone = {0: w, 5: w}
    while not run.finished:
        alone = {client: trained_by_hand(run, v, client, run.state.round)[0] for client, v in alone.items()}
        run.advance()
    for client, v in alone.items():
        agree(own(run, client), v)


def test_a_strong_pull_keeps_the_own_model_at_the_received_one():
    def gap(lam):
        run = start(toy_cell(Ditto(lam=lam), protocol=DOUBLE | PLAIN_SGD | {"rounds": 1}))
        w = numbers(run.state.params)
        run.advance()
        return norm(minus(numbers(own(run, 5)), w))

    gaps = [gap(lam) for lam in (0.0, 1.0, 5.0)]
    assert gaps[0] > 1.2 * gaps[1] > 1.2 * gaps[2]


def test_own_models_and_statistics_are_scored_beside_the_global_one():
    run = trained(toy_cell(Ditto(lam=0.1), model=NormNet()))
    scores = score_stages(run)
    assert scores["trained"]["accuracy"] is not None
    assert scores["personalised"]["accuracy"] is None
    assert scores["personalised"]["client_accuracy"] != scores["trained"]["accuracy"]
    statistics = numbers(under("statistics", run.state.row(5).states["ditto"]))
    assert statistics.keys() == run.state.buffers.keys()
    assert not np.allclose(statistics["body.1.running_mean"], numbers(run.state.buffers)["body.1.running_mean"])
