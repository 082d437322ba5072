"""FedDyn, FedDC, FedSpeed and FedSMOO against NumPy float64, under partial participation."""

import numpy as np
import pytest

from fedspan.methods.algorithms.feddc import FedDC
from fedspan.methods.algorithms.feddyn import FedDyn
from fedspan.methods.algorithms.fedsmoo import FedSMOO
from fedspan.methods.algorithms.fedspeed import FedSpeed
from tests.helpers import start, toy_cell
from tests.methods.by_hand import (
    agree,
    finished,
    fresh,
    mean,
    minus,
    norm,
    numbers,
    plain_gradient,
    plus,
    trained_by_hand,
)
from tests.toys import NormNet

CLIENTS = range(6)
PROTOCOL = {"rounds": 4, "schedule": "cosine"}
momenta = pytest.mark.parametrize("momentum", [0.0, 0.9])


def zero(w):
    return {path: 0 * leaf for path, leaf in w.items()}


def plain_mean(trees):
    return mean(trees, [1] * len(trees))


def pulled(w, g, strength):
    """Return the gradient of the loss minus <g, v> plus strength/2 ||v - w||^2."""

    def gradient(v, x, y):
        return plus(minus(plain_gradient(v, x, y), g), minus(v, w), strength)

    return gradient


def share_of(run, client, share):
    """Return a client's number of images relative to the mean client's where it divides, else 1."""
    sizes = [run.trainer.data.size(k) for k in CLIENTS]
    return sizes[client] / np.mean(sizes) if share == "divides" else 1


@momenta
@pytest.mark.parametrize("alpha", [0.01, 0.5])
def test_feddyn_is_the_algorithm_of_the_paper_in_gradients(alpha, momentum):
    run = fresh(FedDyn(alpha=alpha), protocol=PROTOCOL | {"momentum": momentum})
    w = numbers(run.state.params)
    h, g = zero(w), dict.fromkeys(CLIENTS, zero(w))
    while not run.finished:
        chosen, round = run.participants(), run.state.round
        ends = [trained_by_hand(run, w, k, round, pulled(w, g[k], alpha))[0] for k in chosen]
        for k, end in zip(chosen, ends, strict=True):
            g[k] = plus(g[k], minus(end, w), -alpha)
            h = plus(h, minus(end, w), -alpha / len(CLIENTS))
        w = plus(plain_mean(ends), h, -1 / alpha)
        run.advance()
        agree(run.state.params, w)


@momenta
def test_the_authors_feddyn_divides_alpha_by_each_client_s_share_of_the_images(momentum):
    run = fresh(FedDyn(alpha=0.2, share="divides"), protocol=PROTOCOL | {"momentum": momentum})
    w, drift = numbers(run.state.params), dict.fromkeys(CLIENTS, zero(numbers(run.state.params)))
    while not run.finished:
        chosen, ends = run.participants(), []
        for k in chosen:
            towards = minus(w, drift[k])
            gradient = pulled(towards, zero(w), 0.2 / share_of(run, k, "divides"))
            ends.append(trained_by_hand(run, w, k, run.state.round, gradient)[0])
            drift[k] = plus(drift[k], minus(ends[-1], w))
        w = plus(plain_mean(ends), plain_mean(list(drift.values())))
        run.advance()
        agree(run.state.params, w)


@momenta
@pytest.mark.parametrize(
    ("alpha", "share", "steps"),
    [(0.01, "ignored", "own"), (0.5, "ignored", "own"), (0.5, "divides", "own"), (0.5, "ignored", "mean"),
     (0.1, "divides", "mean")],
)  # fmt: skip
def test_feddc_adds_each_client_s_drift_and_corrects_gradients(alpha, share, steps, momentum):
    run = fresh(FedDC(alpha=alpha, share=share, steps=steps), protocol=PROTOCOL | {"momentum": momentum})
    w, protocol = numbers(run.state.params), run.cell.protocol
    mean_client = np.mean([run.trainer.data.size(k) for k in CLIENTS])
    mean_way = np.ceil(mean_client / protocol.batch_size) * protocol.local_epochs * protocol.lr
    c, own, drift = zero(w), dict.fromkeys(CLIENTS, zero(w)), dict.fromkeys(CLIENTS, zero(w))
    while not run.finished:
        chosen, round, eta = run.participants(), run.state.round, run.cell.protocol.lr_at(run.state.round)
        ends, changes = [], []
        for k in chosen:
            part = share_of(run, k, share)
            beside = {path: -eta * (c[path] / part - own[k][path]) for path in w}
            pull = pulled(minus(w, drift[k]), zero(w), alpha / part)
            end, taken = trained_by_hand(run, w, k, round, pull, beside=beside)
            drift[k] = plus(drift[k], minus(end, w))
            way = mean_way if steps == "mean" else taken * eta
            new = plus(plus(own[k], c, -1 / part), minus(w, end), 1 / way)
            changes.append(plus(zero(w), minus(new, own[k]), part))
            own[k] = new
            ends.append(end)
        w = plus(plain_mean(ends), plain_mean(list(drift.values())))
        c = {path: c[path] + sum(change[path] for change in changes) / len(CLIENTS) for path in c}
        run.advance()
        agree(run.state.params, w)


@momenta
@pytest.mark.parametrize("corrections", ["all", "participants"])
@pytest.mark.parametrize(("alpha", "rho", "prox"), [(1.0, 0.1, 0.1), (0.3, 0.5, 0.6)])
def test_fedspeed_corrects_the_proximal_term_and_looks_uphill(alpha, rho, prox, corrections, momentum):
    algorithm = FedSpeed(alpha=alpha, rho=rho, prox=prox, corrections=corrections)
    run = fresh(algorithm, protocol=PROTOCOL | {"momentum": momentum})
    w = numbers(run.state.params)
    q = dict.fromkeys(CLIENTS, zero(w))
    while not run.finished:
        chosen, ends = run.participants(), []
        for k in chosen:

            def gradient(v, x, y, k=k, w=w):
                g = plain_gradient(v, x, y)
                uphill = plain_gradient(plus(v, g, rho / norm(g)), x, y)
                merged = {path: (1 - alpha) * g[path] + alpha * uphill[path] for path in g}
                return plus(minus(merged, q[k]), minus(v, w), prox)

            ends.append(trained_by_hand(run, w, k, run.state.round, gradient)[0])
        for k, end in zip(chosen, ends, strict=True):
            q[k] = plus(q[k], minus(end, w), -prox)
        corrected = CLIENTS if corrections == "all" else chosen
        w = plus(plain_mean(ends), plain_mean([q[k] for k in corrected]), -1 / prox)
        run.advance()
        agree(run.state.params, w)


class DRegSAM:
    """`woodenchild95/FL-Simulator`, optimizer/DRegSAM.py, client/fedsmoo.py: a step, and a client's dual variable."""

    def __init__(self, start, h, mu, s, rho, lamb):
        self.correction, self.mu, self.s = minus(h, start), mu, s
        self.rho, self.lamb = rho, lamb

    def __call__(self, v, x, y):
        g = minus(minus(plain_gradient(v, x, y), self.mu), self.s)
        self.e = plus(zero(v), g, self.rho / (norm(g) + 1e-7))
        self.mu = plus(self.mu, minus(self.e, self.s))
        uphill = plain_gradient(plus(v, self.e), x, y)
        return plus(uphill, plus(v, self.correction), self.lamb)  # lamb v is in that code's weight decay


@momenta
@pytest.mark.parametrize("dual", ["released", "full"])
def test_fedsmoo_is_the_authors_code(dual, momentum):
    rho, lamb = 0.3, 0.2
    run = fresh(FedSMOO(rho=rho, prox=lamb, dual=dual), protocol=PROTOCOL | {"momentum": momentum})
    w = numbers(run.state.params)
    h, mu = dict.fromkeys(CLIENTS, zero(w)), dict.fromkeys(CLIENTS, zero(w))
    s = zero(w)
    while not run.finished:
        chosen, round = run.participants(), run.state.round
        sent, ends = [], []
        for k in chosen:
            gradient = DRegSAM(w, h[k], mu[k], s, rho, lamb)
            ends.append(trained_by_hand(run, w, k, round, gradient)[0])
            h[k], mu[k] = plus(h[k], minus(ends[-1], w)), gradient.mu
            sent.append(mu[k] if dual == "released" else minus(mu[k], gradient.e))
        w = plus(plain_mean(ends), plain_mean(list(h.values())))
        s = plain_mean(sent)
        s = plus(zero(w), s, rho / (norm(s) + 1e-7))
        run.advance()
        agree(run.state.params, w)
        assert norm(s) == pytest.approx(rho)


@pytest.mark.parametrize("algorithm", [FedDyn(), FedDC(), FedSpeed(), FedSMOO()], ids=lambda algorithm: algorithm.name)
def test_the_server_holds_the_mean_drift_of_all_clients(algorithm):
    run = finished(fresh(algorithm))
    drifts = [
        {path.removeprefix("h/"): leaf for path, leaf in numbers(run.state.row(k).states[algorithm.name]).items()
         if path.startswith("h/")} for k in CLIENTS
    ]  # fmt: skip
    server = run.state.server[algorithm.name]
    agree({path.removeprefix("h/"): leaf for path, leaf in server.items() if path.startswith("h/")}, plain_mean(drifts))


def test_fedspeed_s_two_averages_agree_where_everybody_takes_part():
    everybody = {"participation": 1.0}
    every, here = (finished(fresh(FedSpeed(corrections=c), **everybody)) for c in ("all", "participants"))
    agree(every.state.params, numbers(here.state.params), 1e-12)


@pytest.mark.parametrize(("algorithm", "up", "down"), [(FedDyn(), 1, 1), (FedDC(), 2, 2), (FedSpeed(), 1, 1),
                                                            (FedSMOO(), 2, 2)],
                         ids=["feddyn", "feddc", "fedspeed", "fedsmoo"])  # fmt: skip
def test_only_feddc_sends_more_than_the_weights(algorithm, up, down):
    run, plain = (start(toy_cell(each)) for each in (algorithm, None))
    for one in (run, plain):
        one.advance()
    assert (run.meter.bytes_up, run.meter.bytes_down) == (up * plain.meter.bytes_up, down * plain.meter.bytes_down)


def test_batchnorm_statistics_do_not_drift():
    run = finished(start(toy_cell(FedDyn(), model=NormNet())))
    assert {path.removeprefix("h/") for path in run.state.server["feddyn"]} == set(run.state.params)
