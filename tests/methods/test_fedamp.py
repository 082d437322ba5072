"""FedAMP by hand: the model that the server mixes for each client, what the client makes of it, what travels."""

import numpy as np
import pytest

from fedspan.benchmark.errors import Incompatible
from fedspan.benchmark.training.evaluation import score
from fedspan.benchmark.training.scoring import score_stages
from fedspan.benchmark.tree import nbytes, under
from fedspan.methods.algorithms.fedamp import FedAMP
from tests.helpers import start, toy_cell, trained
from tests.methods.by_hand import agree, fresh, mean, norm, numbers, plain_gradient, plus, sizes, trained_by_hand
from tests.toys import NormNet

CLIENTS = range(6)


def flat(w):
    return np.concatenate([w[path].ravel() for path in sorted(w)])


def cosine(a, b):
    return flat(a) @ flat(b) / np.linalg.norm(flat(a)) / np.linalg.norm(flat(b))


def mixed(algorithm, client, models, first):
    """Return the client's cloud model of the `models` that were sent, in NumPy."""
    mine = models.get(client, first)
    others = [models[other] for other in sorted(models) if other != client]
    if not others:
        return mine
    if algorithm.attention == "distance":
        apart = np.array([((flat(mine) - flat(other)) ** 2).sum() for other in others])
        xi = algorithm.alpha / algorithm.sigma * np.exp(-apart / algorithm.sigma)
    else:
        cosines = np.array([cosine(mine, other) for other in others])
        attention = np.exp(algorithm.sigma * cosines)
        xi = (1 - algorithm.self_weight) * attention / attention.sum()
    u = {path: (1 - xi.sum()) * leaf for path, leaf in mine.items()}
    for weight, other in zip(xi, others, strict=True):
        u = plus(u, other, weight)
    return u


@pytest.mark.parametrize("participation", [0.5, 1.0])
@pytest.mark.parametrize(
    "algorithm",
    [
        FedAMP(lam=0.7, sigma=4.0, self_weight=0.3),
        FedAMP(lam=0.7, sigma=4.0, self_weight=0.3, start="cloud"),
        FedAMP(attention="distance", lam=0.7, alpha=0.6, sigma=3.5),
    ],
    ids=["cosine", "from the cloud model", "distance"],
)
def test_all_rounds_follow_algorithm_1(algorithm, participation):
    run = fresh(algorithm, participation=participation, protocol={"rounds": 4})
    first = numbers(run.state.params)
    own, sent = dict.fromkeys(CLIENTS, first), {}
    pulled_apart = 0.0
    while not run.finished:
        chosen, round = run.participants(), run.state.round
        clouds = {client: mixed(algorithm, client, sent, first) for client in chosen}
        for client, u in clouds.items():
            pulled_apart = max(pulled_apart, norm(plus(u, own[client], -1)))

            def gradient(w, x, y, u=u):
                return plus(plain_gradient(w, x, y), plus(w, u, -1), algorithm.lam / algorithm.alpha)

            begin = u if algorithm.start == "cloud" else own[client]
            own[client], _ = trained_by_hand(run, begin, client, round, gradient)
            sent[client] = own[client]
        run.advance()
        agree(run.state.params, mean([own[client] for client in chosen], sizes(run, chosen)))
        for client in CLIENTS:
            agree(under("w", run.state.row(client).states["fedamp"]), own[client])
    assert pulled_apart > 0.01, "no cloud model differed from its client's"


def test_a_client_receives_its_cloud_model_beside_the_mean_and_sends_one_model():
    run, plain = trained(toy_cell(FedAMP(), model=NormNet())), trained(toy_cell(model=NormNet()))
    visits = run.meter.visits
    assert run.meter.bytes_down - plain.meter.bytes_down == visits * nbytes(run.state.params)
    assert run.meter.bytes_up == plain.meter.bytes_up


def test_what_is_scored_is_the_clients_model_with_its_own_statistics():
    run = trained(toy_cell(FedAMP(), model=NormNet()))
    scores = score_stages(run)
    assert scores["personalised"] != scores["trained"] == score(run.trainer, run.state)
    kept = [under("statistics", run.state.row(client).states["fedamp"])["body.1.running_mean"] for client in CLIENTS]
    assert len({tuple(leaf.tolist()) for leaf in kept}) == len(CLIENTS)


def test_the_others_must_not_weigh_more_than_all():
    with pytest.raises(Incompatible, match=r"a weight of 2\.5 in sum, more than 1; raise algorithm.sigma to 5$"):
        start(toy_cell(FedAMP(attention="distance", sigma=2.0)))
    start(toy_cell(FedAMP(attention="distance", sigma=5.0)))
    start(toy_cell(FedAMP(attention="cosine", sigma=2.0)))
