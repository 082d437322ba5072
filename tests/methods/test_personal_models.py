"""pFedMe, Per-FedAvg and APFL by hand: two models at a client, gradients at other weights, models of one's own."""

import numpy as np
import pytest

from fedspan.benchmark.training import stages
from fedspan.benchmark.training.scoring import score_stages
from fedspan.benchmark.tree import under
from fedspan.methods.algorithms.apfl import APFL
from fedspan.methods.algorithms.ditto import Ditto
from fedspan.methods.algorithms.fedamp import FedAMP
from fedspan.methods.algorithms.perfedavg import PerFedAvg
from fedspan.methods.algorithms.pfedme import PFedMe
from tests.helpers import start, toy_cell, trained
from tests.methods.by_hand import (
    DOUBLE,
    agree,
    batches,
    fresh,
    mean,
    minus,
    numbers,
    plain_gradient,
    plus,
    sgd,
    sizes,
)
from tests.toys import NormNet

CLIENTS = range(6)
PLAIN_SGD = {"momentum": 0.0, "weight_decay": 0.0, "rounds": 3, "lr": 0.02}


def test_pfedme_is_the_authors_code_round_by_round():
    """`CharlieDinh/pFedMe`, userpFedMe.py, in NumPy, for the clients that are sampled and all their batches."""
    lamda, k, personal, beta = 8.0, 3, 0.05, 1.5
    run = fresh(PFedMe(lam=lamda, steps=k, personal_lr=personal, beta=beta), protocol=PLAIN_SGD)
    w, models = numbers(run.state.params), {}
    while not run.finished:
        ends, chosen = [], run.participants()
        for client in chosen:
            local_model, model = w, w
            for x, y in batches(run, client, run.state.round):
                for _ in range(k):
                    step = plus(plain_gradient(model, x, y), minus(model, local_model), lamda)
                    model = plus(model, step, -personal)
                local_model = plus(local_model, minus(local_model, model), -lamda * PLAIN_SGD["lr"])
            ends.append(minus(local_model, w))
            models[client] = model
        w = plus(w, mean(ends, sizes(run, chosen)), beta)
        run.advance()
        agree(run.state.params, w)
        for client, model in models.items():
            agree(under("theta", run.state.row(client).states["pfedme"]), model)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_per_fedavg_moves_along_the_gradient_behind_a_step_on_the_other_half(momentum):
    run = fresh(PerFedAvg(alpha=0.2), protocol={"momentum": momentum, "batch_size": 7})
    w, p = numbers(run.state.params), run.cell.protocol

    def behind(w, x, y):
        half = len(y) // 2
        inner = (x[:half], y[:half]) if half else (x, y)
        return plain_gradient(plus(w, plain_gradient(w, *inner), -0.2), x[half:], y[half:])

    lengths = {len(y) % 2 for client in CLIENTS for _, y in batches(run, client, 0)}
    assert lengths == {0, 1}
    while not run.finished:
        chosen, ends = run.participants(), []
        for client in chosen:
            mine = batches(run, client, run.state.round)
            ends.append(minus(sgd(w, mine, behind, p.lr_at(run.state.round), momentum, p.weight_decay)[0], w))
        w = plus(w, mean(ends, sizes(run, chosen)))
        run.advance()
        agree(run.state.params, w)


def test_per_fedavg_adapts_by_a_step_on_all_the_clients_images():
    run = fresh(PerFedAvg(alpha=0.2, steps=2))
    while not run.finished:
        run.advance()
    data = run.trainer.data
    images = data.train.take(data.indices[4])
    x, y = data.normalise(images.x).numpy().reshape(len(images), -1), images.y.numpy()
    w = numbers(run.state.params)
    for _ in range(2):
        w = plus(w, plain_gradient(w, x, y), -0.2)
    stages.personalise(run.trainer, run.state, 4, run.cell.seed)
    agree(run.trainer.params, w)


@pytest.mark.parametrize("moves", ["step", "round", "never"])
def test_apfl_moves_three_things_along_their_gradients(moves):
    adaptive = moves != "never"
    algorithm = APFL(alpha=0.3, adaptive=adaptive, moves=moves if adaptive else "step")
    run = fresh(algorithm, protocol=PLAIN_SGD | {"lr": 0.1})
    w, lr = numbers(run.state.params), 0.1
    own, mixing = dict.fromkeys(CLIENTS, w), dict.fromkeys(CLIENTS, 0.3)
    while not run.finished:
        ends, chosen = [], run.participants()
        for client in chosen:
            here, v, alpha = w, own[client], mixing[client]
            for number, (x, y) in enumerate(batches(run, client, run.state.round)):
                g = plain_gradient({path: alpha * v[path] + (1 - alpha) * here[path] for path in v}, x, y)
                slope = sum(float(((v[path] - here[path]) * g[path]).sum()) for path in v)
                v = plus(v, g, -lr * alpha)
                here = plus(here, plain_gradient(here, x, y), -lr)
                if moves == "step" or (moves == "round" and number == 0):
                    alpha = min(max(alpha - lr * slope, 0), 1)
            own[client], mixing[client] = v, alpha
            ends.append(minus(here, w))
        w = plus(w, mean(ends, sizes(run, chosen)))
        run.advance()
        agree(run.state.params, w)
        for client in CLIENTS:
            tree = run.state.row(client).states["apfl"]
            agree(under("v", tree), own[client])
            assert tree["alpha"].item() == pytest.approx(mixing[client], rel=1e-12)
    assert (len(set(mixing.values())) > 1) == adaptive
    stages.personalise(run.trainer, run.state, 5, 0)
    agree(run.trainer.params, {path: mixing[5] * own[5][path] + (1 - mixing[5]) * w[path] for path in w})


def test_apfl_at_alpha_1_keeps_models_apart_and_at_0_shares_them():
    alone, together = (fresh(APFL(alpha=a, adaptive=False)) for a in (1.0, 0.0))
    for run in (alone, together):
        while not run.finished:
            run.advance()
        stages.personalise(run.trainer, run.state, 5, 0)
    agree(together.trainer.params, numbers(together.state.params), 0.0)
    agree(alone.trainer.params, numbers(under("v", alone.state.row(5).states["apfl"])), 0.0)


@pytest.mark.parametrize("algorithm", [PFedMe(), PerFedAvg(alpha=0.1), APFL()], ids=lambda a: a.name)
def test_own_models_are_scored_with_batchnorms_statistics_of_their_own(algorithm):
    run = trained(toy_cell(algorithm, model=NormNet()))
    scores = score_stages(run)
    assert scores["trained"]["accuracy"] is not None
    assert np.isfinite(scores["personalised"]["loss"])
    stages.personalise(run.trainer, run.state, 5, 0)
    mine = numbers(run.trainer.buffers)
    assert not np.allclose(mine["body.1.running_mean"], numbers(run.state.buffers)["body.1.running_mean"])


@pytest.mark.parametrize("algorithm", [Ditto(), FedAMP()], ids=lambda a: a.name)
def test_own_models_are_scored_with_the_statistics_that_they_keep(algorithm):
    run = trained(toy_cell(algorithm, model=NormNet()))
    stages.personalise(run.trainer, run.state, 5, 0)
    agree(run.trainer.buffers, numbers(under("statistics", run.state.row(5).states[algorithm.name])), 0.0)


def test_pfedme_moves_its_statistics_at_every_step():
    """They start at 0: after three steps at one theta they have gone 1 - 0.9**3 of the way, after one 0.1."""
    moved = []
    for steps in (1, 3):
        protocol = DOUBLE | {"local_epochs": 1, "batch_size": 100}
        run = start(toy_cell(PFedMe(steps=steps, personal_lr=1e-12), model=NormNet(), protocol=protocol))
        moved.append(run.trainer.train(run.state, 5).row.states["pfedme"]["statistics/body.1.running_mean"])
    np.testing.assert_allclose(moved[1], 2.71 * moved[0], rtol=1e-6)


def test_per_fedavg_moves_its_statistics_at_every_step():
    moved = []
    for steps in (1, 2):
        run = start(toy_cell(PerFedAvg(alpha=1e-12, steps=steps), model=NormNet(), protocol=DOUBLE))
        stages.personalise(run.trainer, run.state, 5, 0)
        moved.append(numbers(run.trainer.buffers)["body.1.running_mean"])
    np.testing.assert_allclose(moved[1], 1.9 * moved[0], rtol=1e-6)


def test_at_alpha_0_apfls_statistics_are_those_of_w():
    run = start(toy_cell(APFL(alpha=0.0, adaptive=False), model=NormNet(), protocol=DOUBLE))
    done = run.trainer.train(run.state, 5)
    agree(under("statistics", done.row.states["apfl"]), numbers(done.buffers))


def test_with_momentum_and_decay_apfls_own_model_steps_by_the_protocols_sgd():
    run = fresh(APFL(alpha=0.3, adaptive=False), protocol={"momentum": 0.9, "weight_decay": 0.01, "rounds": 2})
    w, lr = numbers(run.state.params), run.cell.protocol.lr
    own = dict.fromkeys(CLIENTS, w)
    while not run.finished:
        for client in run.participants():
            here, v = w, own[client]
            speeds = [{path: 0 * leaf for path, leaf in w.items()} for _ in range(2)]
            for x, y in batches(run, client, run.state.round):
                mixture = plus({path: 0.7 * leaf for path, leaf in here.items()}, v, 0.3)
                slopes = (
                    plain_gradient(here, x, y),
                    {path: 0.3 * g for path, g in plain_gradient(mixture, x, y).items()},
                )
                speeds = [
                    {path: 0.9 * m[path] + g[path] + 0.01 * now[path] for path in w}
                    for m, g, now in zip(speeds, slopes, (here, v), strict=True)
                ]
                here, v = plus(here, speeds[0], -lr), plus(v, speeds[1], -lr)
            own[client] = v
        run.advance()
        w = numbers(run.state.params)
        for client in CLIENTS:
            agree(under("v", run.state.row(client).states["apfl"]), own[client])
