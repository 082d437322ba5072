import numpy as np
import pytest
import torch

from fedspan.methods.algorithms.fedprox import FedProx
from tests.helpers import start, toy_cell, trained, weights


def drift(mu):
    """Return how far client 4 ends from the global weights."""
    run = start(toy_cell(FedProx(mu=mu)))
    done = run.trainer.train(run.state, 4)
    return sum(float(leaf.square().sum()) for leaf in done.delta.values())


def test_without_a_term_it_is_fedavg_bit_for_bit():
    assert weights(trained(toy_cell(FedProx(mu=0.0)))) == weights(trained(toy_cell()))


def test_the_more_it_pulls_the_less_a_client_drifts():
    assert drift(0.0) > drift(0.1) > drift(1.0)


def test_the_term_is_half_mu_times_the_squared_distance():
    rng = np.random.default_rng(0)
    here, there = ({k: rng.normal(size=shape) for k, shape in (("a", (3, 2)), ("b", (4,)))} for _ in range(2))

    class Where:
        params = {k: torch.from_numpy(v).requires_grad_() for k, v in here.items()}
        start = {k: torch.from_numpy(v) for k, v in there.items()}

    term = FedProx(mu=0.7).penalty(Where)
    term.backward()
    assert term.item() == pytest.approx(0.35 * sum(((here[k] - there[k]) ** 2).sum() for k in here))
    for k in here:
        np.testing.assert_allclose(Where.params[k].grad, 0.7 * (here[k] - there[k]))


def test_the_reference_is_the_start_of_the_round_not_the_moving_weights():
    """A client's steps with the term, against plain SGD whose gradient has mu (w - w_global) added by hand."""
    cell = toy_cell(FedProx(mu=0.5), protocol={"precision": "float64"})
    run = start(cell)
    done = run.trainer.train(run.state, 3)
    by_hand = start(toy_cell(protocol={"precision": "float64"}))
    net, protocol = by_hand.trainer.net, cell.protocol
    first = {path: leaf.detach().clone() for path, leaf in net.named_parameters()}
    sgd = torch.optim.SGD(net.parameters(), protocol.lr, protocol.momentum, weight_decay=protocol.weight_decay)
    for epoch in range(protocol.local_epochs):
        for x, y in by_hand.trainer.data.epoch(3, 0, epoch):
            sgd.zero_grad()
            torch.nn.functional.cross_entropy(net(x)[1], y).backward()
            for path, leaf in net.named_parameters():
                leaf.grad += 0.5 * (leaf.detach() - first[path])
            sgd.step()
    for path, leaf in net.named_parameters():
        torch.testing.assert_close(done.delta[path], leaf.detach() - first[path])
