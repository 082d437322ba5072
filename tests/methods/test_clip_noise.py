"""Clipping and noise by hand; what Opacus is asked, and what is refused."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import norm as normal

from fedspan.benchmark.errors import Incompatible, UserError
from fedspan.benchmark.rng import generator
from fedspan.benchmark.running.cell_run import run_cell
from fedspan.methods.addons.clip_noise import ClipNoise, epsilon_of
from fedspan.methods.addons.oracle_head import OracleHead
from fedspan.methods.addons.topk import TopK
from fedspan.methods.algorithms.centralized import Centralized
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.methods.algorithms.feddyn import FedDyn
from fedspan.methods.algorithms.fedproto import FedProto
from fedspan.methods.algorithms.lg_fedavg import LGFedAvg
from tests.helpers import how, start, toy_cell
from tests.methods.by_hand import agree, fresh, minus, norm, numbers, plus, trained_by_hand
from tests.toys import NormNet

CLIP, NOISE = 0.2, 0.7


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_it_is_algorithm_1_round_by_round(sampling):
    """The sum of clipped updates and noise, over a denominator that does not depend on who came."""
    addon = ClipNoise(clip=CLIP, noise=NOISE)
    run = fresh(FedAvg(), addons=(addon,), participation=0.4, protocol={"rounds": 6, "sampling": sampling})
    w, shortened, present = numbers(run.state.params), [], set()
    while not run.finished:
        round, chosen = run.state.round, run.participants()
        total = {path: np.zeros_like(leaf) for path, leaf in w.items()}
        for client in chosen:
            update = minus(trained_by_hand(run, w, client, round)[0], w)
            shortened.append(norm(update) > CLIP)
            total = plus(total, update, min(1, CLIP / norm(update)))
        draws = generator(run.cell.seed, "server", "clip_noise", round)
        noise = {
            path: torch.randn(leaf.shape, generator=draws, dtype=torch.float64).numpy() for path, leaf in w.items()
        }
        expected = 6 * 0.4 if sampling == "poisson" else 2
        w = plus(w, plus(total, noise, NOISE * CLIP), 1 / expected)
        present.add(len(chosen))
        run.advance()
        agree(run.state.params, w)
    assert set(shortened) == {True, False}
    assert (len(present) > 1) == (sampling == "poisson")


def test_whatever_leaves_a_client_is_no_longer_than_the_clip_and_counts_once():
    run = start(toy_cell(FedAvg(), ClipNoise(clip=CLIP), TopK(share=0.5)))
    done = [run.trainer.train(run.state, client) for client in range(6)]
    lengths = [norm(numbers(one.delta)) for one in done]
    assert max(lengths) <= CLIP * (1 + 1e-6)
    assert max(lengths) == pytest.approx(CLIP)
    sums = run.executor.sums(range(6))
    assert set(sums.weights.values()) == {1.0}, "numbers of images would give some clients more"


# epsilon ----------------------------------------------------------------------------------------------


def by_quadrature(noise, rate, rounds, delta):
    """Mironov et al. 2019 (arXiv 1908.10530), Eq. 4: the divergence of a mixture of normals, as an integral.

    It becomes epsilon by Canonne et al. 2020 (arXiv 2004.00010), Proposition 12, at the best order.
    """
    found = []
    for order in [*np.arange(11, 110) / 10, *range(12, 64)]:
        x, step = np.linspace(-14 * noise, order + 14 * noise, 20001, retstep=True)
        ratio = np.logaddexp(np.log1p(-rate), np.log(rate) + (2 * x - 1) / (2 * noise**2))
        divergence = (logsumexp(normal.logpdf(x, scale=noise) + order * ratio) + np.log(step)) / (order - 1)
        found.append(rounds * divergence + np.log1p(-1 / order) - np.log(delta * order) / (order - 1))
    return min(found)


@pytest.mark.parametrize("case", [(1.0, 0.1, 100, 1e-5), (0.5, 0.2, 5, 1e-5), (4.0, 0.01, 1000, 1e-6)])
def test_epsilon_is_that_of_the_definition(case):
    assert epsilon_of(*case) == pytest.approx(by_quadrature(*case), rel=1e-6)


def test_without_sampling_epsilon_bounds_that_of_the_exact_gaussian_mechanism():
    """Balle and Wang 2018 (ICML), Theorem 8: T mechanisms are one with noise / sqrt(T); the bound is a little above."""
    noise, rounds, delta = 3.0, 16, 1e-5
    mu = math.sqrt(rounds) / noise

    def excess(epsilon):
        return normal.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal.cdf(-mu / 2 - epsilon / mu) - delta

    exact = brentq(excess, 0, 100)
    assert exact < epsilon_of(noise, 1.0, rounds, delta) < 1.1 * exact


def test_the_docs_say_what_sampling_is_worth():
    everybody, drawn = (epsilon_of(1.0, rate, 100, 1e-5) for rate in (1.0, 0.01))
    page = " ".join((Path(__file__).parents[2] / "docs" / "methods.md").read_text().split())
    assert f"noise 1 and 100 rounds, that is {everybody:.1f} instead of {drawn:.2f}." in page


def spent(noise=1.0, participation=0.1, **protocol):
    cell = toy_cell(FedAvg(), ClipNoise(noise=noise), clients=6, participation=participation, protocol=protocol)
    return start(cell).privacy["epsilon"]


def test_more_noise_fewer_rounds_and_rarer_turns_spend_less():
    poisson = {"rounds": 40, "sampling": "poisson"}
    assert spent(**poisson, noise=2.0) < spent(**poisson) < spent(**poisson | {"rounds": 80})
    assert spent(**poisson) < spent(**poisson, participation=0.5) < spent(**poisson, participation=1.0)


def test_a_fixed_number_of_participants_is_counted_as_everybody():
    everybody = epsilon_of(1.0, 1.0, 40, 1e-5)
    assert spent(rounds=40, participation=0.5) == spent(rounds=40, participation=1.0) == everybody


def test_a_record_holds_epsilon_at_delta(tmp_path):
    cell = toy_cell(FedAvg(), ClipNoise(delta=1e-3), protocol={"rounds": 2})
    record = run_cell(cell, how(tmp_path))
    assert record["scores"]["privacy"] == {"epsilon": epsilon_of(1.0, 1.0, 2, 1e-3), "delta": 1e-3}


# what is refused ------------------------------------------------------------------------------------


def test_a_budget_that_is_too_small_is_refused_before_training_and_names_the_noise_that_keeps_it(tmp_path):
    cell = toy_cell(FedAvg(), ClipNoise(epsilon=2.0), protocol={"rounds": 3})
    record = run_cell(cell, how(tmp_path))
    assert (record["status"], record["curve"].get("round")) == ("skipped", [])
    assert record["reason"].startswith("addon.clip_noise.noise=1 spends epsilon ")
    noise = float(record["reason"].split("; noise=")[1].split()[0])
    enough = replace(cell, addons=(ClipNoise(epsilon=2.0, noise=noise),))
    assert start(enough).privacy["epsilon"] <= 2
    with pytest.raises(Incompatible):
        _ = start(replace(cell, addons=(ClipNoise(epsilon=2.0, noise=0.9 * noise),))).privacy


def test_a_budget_that_no_noise_keeps_is_said_to_be_one():
    cell = toy_cell(FedAvg(), ClipNoise(epsilon=1e-9, delta=1e-9), protocol={"rounds": 1000})
    with pytest.raises(Incompatible, match="epsilon=1e-09; no noise keeps within it"):
        _ = start(cell).privacy


@pytest.mark.parametrize("noise", [1e-76, 1e-200])
def test_an_epsilon_that_no_record_holds_is_refused_before_training(noise):
    with pytest.raises(Incompatible, match=r"^'clip_noise' gives epsilon=\S+e\+\d+, which protects nothing; raise"):
        _ = start(toy_cell(FedAvg(), ClipNoise(noise=noise))).privacy


@pytest.mark.parametrize("settings", [{"noise": 0.0}, {"clip": 0.0}, {"delta": 0.0}, {"delta": 1.0}, {"epsilon": 0.0}])
def test_no_noise_and_no_clipping_are_no_privacy(settings):
    with pytest.raises(UserError, match=f"addon.clip_noise.{next(iter(settings))} must"):
        ClipNoise(**settings)


def test_a_delta_that_allows_to_publish_a_client_is_refused():
    with pytest.raises(Incompatible, match=r"delta=0.2 promises nothing to one of 6 clients; it must be below 0.16"):
        start(toy_cell(FedAvg(), ClipNoise(delta=0.2)))


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        (FedDyn(), "'feddyn' and 'clip_noise' both replace 'weights'"),
        (FedProto(), "'fedproto' lets none travel"),
        (Centralized(), "'centralized' sends none"),
    ],
)
def test_weights_and_prototypes_are_no_updates_of_bounded_length(algorithm, why):
    with pytest.raises(Incompatible, match=why):
        start(toy_cell(algorithm, ClipNoise()))


def test_a_bound_that_pools_features_of_all_clients_is_refused():
    with pytest.raises(Incompatible, match="allows only updates to leave a client, but 'oracle_head' pools"):
        start(toy_cell(FedAvg(), ClipNoise(), OracleHead()))


def test_statistics_that_travel_in_a_warm_up_alone_are_refused_too():
    start(toy_cell(LGFedAvg(), ClipNoise(), model=NormNet()))
    with pytest.raises(Incompatible, match="'clip_noise' allows only updates to leave a client, but BatchNorm's"):
        start(toy_cell(LGFedAvg(warm_up=0.5), ClipNoise(), model=NormNet(), protocol={"rounds": 4}))


def test_without_opacus_one_line_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(UserError, match=r"the package opacus: uv pip install -e '\.\[privacy\]'"):
        run_cell(toy_cell(FedAvg(), ClipNoise()), how(tmp_path))
