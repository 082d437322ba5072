import pytest
import torch

from fedspan.methods.algorithms.scaffold import Scaffold
from tests.helpers import toy_cell, trained
from tests.methods.by_hand import (
    agree,
    finished,
    fresh,
    mean,
    minus,
    numbers,
    plus,
    sizes,
    trained_by_hand,
)
from tests.toys import NormNet

CLIENTS = range(6)
momenta = pytest.mark.parametrize("momentum", [0.0, 0.9])
shares = pytest.mark.parametrize("participation", [0.5, 1.0])


def zero(w):
    return {path: 0 * leaf for path, leaf in w.items()}


@momenta
@shares
@pytest.mark.parametrize("lr", [1.0, 0.5])
def test_all_rounds_are_those_of_the_paper_with_momentum_on_the_gradient_alone(momentum, participation, lr):
    protocol = {"momentum": momentum, "schedule": "cosine", "rounds": 4}
    run = fresh(Scaffold(lr=lr), participation=participation, protocol=protocol)
    w = numbers(run.state.params)
    c, own = zero(w), dict.fromkeys(CLIENTS, zero(w))
    while not run.finished:
        round, eta, updates, change = run.state.round, run.cell.protocol.lr_at(run.state.round), [], []
        chosen = run.participants()
        for client in chosen:
            beside = {path: -eta * (c[path] - own[client][path]) for path in w}
            end, steps = trained_by_hand(run, w, client, round, beside=beside)
            new = {path: own[client][path] - c[path] + (w[path] - end[path]) / (steps * eta) for path in w}
            updates.append(minus(end, w))
            change.append(minus(new, own[client]))
            own[client] = new
        w = plus(w, mean(updates, sizes(run, chosen)), lr)
        c = {path: c[path] + sum(each[path] for each in change) / len(CLIENTS) for path in w}
        run.advance()
        agree(run.state.params, w)
        agree(run.state.server["scaffold"], c)
        for client in run.state.rows:
            agree(run.state.row(client).states["scaffold"], own[client])


@momenta
def test_the_first_round_is_fedavgs_bit_for_bit(momentum):
    mine, plain = (
        trained(toy_cell(a, model=NormNet(), protocol={"rounds": 1, "momentum": momentum})) for a in (Scaffold(), None)
    )
    for path, leaf in mine.state.params.items():
        assert torch.equal(leaf, plain.state.params[path])


@momenta
@shares
def test_the_servers_variate_stays_the_mean_of_all_clients_variates(momentum, participation):
    run = fresh(Scaffold(), participation=participation, protocol={"momentum": momentum, "rounds": 5})
    while not run.finished:
        run.advance()
        clients = [numbers(run.state.row(client).states["scaffold"]) for client in CLIENTS]
        agree(run.state.server["scaffold"], mean(clients, [1] * len(CLIENTS)))


def test_with_one_client_it_is_fedavg():
    mine, plain = (finished(fresh(a, clients=1, participation=1.0)) for a in (Scaffold(), None))
    agree(mine.state.params, numbers(plain.state.params))


def test_only_clients_that_trained_are_remembered():
    run = fresh(Scaffold(), participation=0.2)
    chosen = set()
    while not run.finished:
        chosen |= set(run.participants())
        run.advance()
    assert set(run.state.rows) == chosen
    assert chosen < set(CLIENTS)


def test_variates_have_the_weights_alone_not_the_statistics():
    run = trained(toy_cell(Scaffold(), model=NormNet()))
    assert set(run.state.server["scaffold"]) == set(run.state.params)
