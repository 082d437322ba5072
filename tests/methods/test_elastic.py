"""Elastic aggregation by hand: what clients measure, and how far the server moves each weight."""

import numpy as np
import pytest
import torch

from fedspan.methods.algorithms.elastic import Elastic
from tests.methods.by_hand import PLAIN, agree, fresh, mean, minus, numbers, sizes, trained_by_hand


def sensitivity(run, w, client, omega, mu):
    """Return a client's sensitivities after one more pass over its images, in batches."""
    data = run.trainer.data
    images = data.train.take(data.indices[client])
    x = data.normalise(images.x).numpy().astype(np.float64).reshape(len(images), -1)
    for first in range(0, len(x), run.cell.protocol.batch_size):
        batch = x[first : first + run.cell.protocol.batch_size]
        slope = PLAIN.gradient(w, batch, 2 * PLAIN.logits(w, batch) / len(batch))
        omega = {path: mu * omega[path] + (1 - mu) * abs(slope[path]) for path in omega}
    return omega


def elastic(delta, omega, tau, scope):
    """Return the mean update, weight by weight 1 + tau - Omega / max Omega times as long."""
    most = {path: omega[path].max() for path in omega}
    if scope == "model":
        most = dict.fromkeys(most, max(most.values()))
    return {path: (1 + tau - omega[path] / most[path]) * delta[path] for path in delta}


@pytest.mark.parametrize("scope", ["model", "tensor"])
def test_it_is_the_papers_equations_round_by_round(scope):
    run = fresh(Elastic(tau=0.3, mu=0.8, scope=scope), protocol={"rounds": 4})
    w = numbers(run.state.params)
    omegas = [{path: np.zeros_like(leaf) for path, leaf in w.items()} for _ in range(6)]
    twice = 0
    while not run.finished:
        round, chosen = run.state.round, run.participants()
        twice += sum(any(leaf.any() for leaf in omegas[client].values()) for client in chosen)
        for client in chosen:
            omegas[client] = sensitivity(run, w, client, omegas[client], 0.8)
        ends = [minus(trained_by_hand(run, w, client, round)[0], w) for client in chosen]
        n = sizes(run, chosen)
        change = elastic(mean(ends, n), mean([omegas[client] for client in chosen], n), 0.3, scope)
        w = {path: w[path] + change[path] for path in w}
        run.advance()
        agree(run.state.params, w)
    assert twice, "nobody measured on top of an earlier round"
    for client in range(6):
        agree(run.state.row(client).states["elastic"], omegas[client])


@pytest.mark.parametrize("scope", ["model", "tensor"])
def test_weights_move_by_tau_to_one_plus_tau_times_the_mean(scope):
    method, torch_rng = Elastic(tau=0.25, scope=scope), torch.Generator().manual_seed(0)
    delta = {path: torch.rand(4, generator=torch_rng) + 1 for path in "ab"}
    sums = {"a": torch.tensor([0.0, 1.0, 2.0, 8.0]).double(), "b": torch.tensor([0.0, 1.0, 2.0, 4.0]).double()}
    moved, _ = method.server(delta, type("Round", (), {"sums": sums})())
    factors = {path: (moved[path] / delta[path]).tolist() for path in "ab"}
    assert factors["a"] == pytest.approx([1.25, 1.125, 1.0, 0.25])
    assert factors["b"] == pytest.approx([1.25, 1.125, 1.0, 0.75] if scope == "model" else [1.25, 1.0, 0.75, 0.25])


def test_a_model_whose_output_depends_on_nothing_moves_by_one_plus_tau():
    sums = {"a": torch.zeros(3).double()}
    moved, _ = Elastic().server({"a": torch.ones(3)}, type("Round", (), {"sums": sums})())
    assert moved["a"].tolist() == [1.5, 1.5, 1.5]
