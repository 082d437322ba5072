"""Server steps against NumPy float64, from the clients' own updates, under partial participation."""

import numpy as np
import pytest
import torch

from fedspan.benchmark.net import buffers_of, parameters_of
from fedspan.benchmark.tree import digest
from fedspan.methods.algorithms.fedadagrad import FedAdagrad
from fedspan.methods.algorithms.fedadam import FedAdam
from fedspan.methods.algorithms.fedavgm import FedAvgM
from fedspan.methods.algorithms.fedexp import FedExp
from fedspan.methods.algorithms.fednova import FedNova
from fedspan.methods.algorithms.fedopt import FedOpt
from fedspan.methods.algorithms.fedyogi import FedYogi
from tests.helpers import start, toy_cell, trained, weights
from tests.methods.by_hand import ByClass, agree, finished, fresh, mean, norm, numbers, plus, sizes
from tests.toys import NormNet

ROUNDS = 4


def each(rule, *leaves):
    """Apply a rule path by path."""
    return {path: rule(*(leaf[path] for leaf in leaves)) for path in leaves[0]}


def check(algorithm, step, **parts):
    """Compare every round with `step(updates, weights of clients) -> what is added to the weights`."""
    run = fresh(algorithm, protocol={"rounds": ROUNDS}, **parts)
    while not run.finished:
        before, chosen = numbers(run.state.params), run.participants()
        updates = [numbers(run.trainer.train(run.state, client).delta) for client in chosen]
        run.advance()
        agree(run.state.params, plus(before, step(updates, sizes(run, chosen))))


@pytest.mark.parametrize("damped", [True, False])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_fedavgm_keeps_a_damped_or_plain_momentum(rho, damped):
    momentum = {}

    def step(updates, n):
        gain = 1 - rho if damped else 1
        momentum.update(each(lambda d: gain * d, mean(updates, n)) if not momentum else
                        each(lambda m, d: rho * m + gain * d, momentum, mean(updates, n)))  # fmt: skip
        return momentum

    check(FedAvgM(rho=rho, damped=damped), step)


def test_the_first_damped_step_is_that_share_of_fedavgs():
    plain, damped = fresh(None), fresh(FedAvgM(rho=0.9))
    first = numbers(plain.state.params)
    for run in (plain, damped):
        run.advance()
    step = each(lambda after, before: 0.1 * (after - before), numbers(plain.state.params), first)
    agree(damped.state.params, plus(first, step))


def moving(run):
    """Return all that the server moves under `statistics`: weights and running statistics."""
    return numbers(run.state.params | run.state.buffers)


@pytest.mark.parametrize("damped", [True, False])
def test_fedavgm_gives_momentum_to_running_statistics_as_released_if_asked(damped):
    run = fresh(FedAvgM(rho=0.9, damped=damped, statistics=True), model=NormNet(), protocol={"rounds": ROUNDS})
    net, momentum = run.trainer.net, None
    while not run.finished:
        before, chosen, ends = moving(run), run.participants(), []
        for client in chosen:
            run.trainer.train(run.state, client)
            ends.append(numbers(parameters_of(net) | buffers_of(net)))
        update = each(lambda end, start: end - start, mean(ends, sizes(run, chosen)), before)
        fed = each(lambda d: (0.1 if damped else 1) * d, update)
        momentum = each(lambda m, d: 0.9 * m + d, momentum, fed) if momentum else fed
        run.advance()
        agree(run.state.params | run.state.buffers, plus(before, momentum))


@pytest.mark.parametrize("algorithm", [FedAvgM, FedNova])
def test_what_becomes_of_running_statistics_changes_no_weight(algorithm):
    moved, averaged = (finished(fresh(algorithm(statistics=s), model=NormNet())) for s in (True, False))
    assert digest(moved.state.params) == digest(averaged.state.params)
    assert digest(moved.state.buffers) != digest(averaged.state.buffers)


@pytest.mark.parametrize("statistics", [False, True])
def test_without_momentum_running_statistics_are_averaged_either_way(statistics):
    mine, plain = (finished(fresh(a, model=NormNet())) for a in (FedAvgM(rho=0.0, statistics=statistics), None))
    agree(mine.state.params | mine.state.buffers, moving(plain))
    assert mine.meter.bytes_up == plain.meter.bytes_up


@pytest.mark.parametrize(("lr", "momentum"), [(1.0, 0.3), (0.5, 0.9), (2.0, 0.0)])
def test_fedopt_is_sgd_with_momentum_on_the_mean_update(lr, momentum):
    buffer = {}

    def step(updates, n):
        d = mean(updates, n)
        buffer.update(each(lambda m, d: momentum * m + d, buffer, d) if buffer else d)
        return each(lambda m: lr * m, buffer)

    check(FedOpt(lr=lr, momentum=momentum), step)


SECOND_MOMENTS = {
    FedAdam: lambda v, d: 0.8 * v + 0.2 * d**2,
    FedYogi: lambda v, d: v - 0.2 * d**2 * np.sign(v - d**2),
    FedAdagrad: lambda v, d: v + d**2,
}


@pytest.mark.parametrize("cls", SECOND_MOMENTS, ids=lambda cls: cls.name)
@pytest.mark.parametrize("model", [None, NormNet()], ids=["plain", "batchnorm"])
def test_the_adaptive_ones_divide_by_the_root_of_the_second_moment(cls, model):
    beta2 = {} if cls is FedAdagrad else {"beta2": 0.8}
    m, v = {}, {}

    def step(updates, n):
        d = mean(updates, n)
        m.update(each(lambda d: 0.4 * d, d) if not m else each(lambda m, d: 0.6 * m + 0.4 * d, m, d))
        v.update(each(SECOND_MOMENTS[cls], v or each(lambda d: np.full_like(d, 0.05**2), d), d))
        return each(lambda m, v: 0.3 * m / (np.sqrt(v) + 0.05), m, v)

    check(cls(lr=0.3, beta1=0.6, tau=0.05, **beta2), step, **({"model": model} if model else {}))


def test_yogi_and_adam_differ_only_in_how_they_forget():
    """With v = D^2 exactly, Adam and Yogi leave v alone; above it, Yogi takes off a share of D^2, Adam of v - D^2."""
    v, squared = torch.tensor([4.0, 9.0]), torch.tensor([4.0, 1.0])
    assert FedAdam(beta2=0.5).second_moment(v, squared).tolist() == [4.0, 5.0]
    assert FedYogi(beta2=0.5).second_moment(v, squared).tolist() == [4.0, 8.5]


@pytest.mark.parametrize("epsilon", [0.0, 1e-3])
@pytest.mark.parametrize("participation", [0.8, 1.0])
def test_fedexp_extrapolates_by_the_disagreement_of_the_updates(epsilon, participation):
    seen = []

    def step(updates, n):
        d = mean(updates, n)
        spread = np.average([norm(update) ** 2 for update in updates], weights=n)
        seen.append(max(1, spread / (2 * (norm(d) ** 2 + epsilon))))
        return each(lambda d: seen[-1] * d, d)

    # one class per client makes updates that cancel
    check(FedExp(epsilon=epsilon), step, participation=participation, partition=ByClass())
    assert max(seen) > 1.05, "nothing was extrapolated"


def test_fedexp_never_takes_less_than_the_mean():
    run, plain = fresh(FedExp(epsilon=1e9)), fresh(None)
    for each_run in (run, plain):
        each_run.advance()
    assert weights(run) == weights(plain)


@pytest.mark.parametrize(
    "neutral",
    [FedAvgM(rho=0.0), FedAvgM(rho=0.0, damped=False), FedOpt(lr=1.0, momentum=0.0)],
    ids=["damped", "plain", "fedopt"],
)
def test_without_momentum_they_are_fedavg_bit_for_bit(neutral):
    for model in (None, NormNet()):
        parts = {"model": model} if model else {}
        mine, plain = (trained(toy_cell(a, participation=0.5, **parts)) for a in (neutral, None))
        assert weights_of(mine) == weights_of(plain)


def weights_of(run):
    return {path: leaf.tolist() for path, leaf in (run.state.params | run.state.buffers).items()}


@pytest.mark.parametrize("cls", [FedAvgM, FedOpt, FedAdam, FedYogi, FedAdagrad, FedExp], ids=lambda cls: cls.name)
def test_batchnorm_statistics_are_plain_means_that_no_server_step_touches(cls):
    run = start(toy_cell(cls(), model=NormNet()))
    done = [run.trainer.train(run.state, client) for client in range(6)]
    run.advance()
    agree(run.state.buffers, mean([numbers(d.buffers) for d in done], [d.n for d in done]), 1e-6)
    assert all((leaf >= 0).all() for path, leaf in run.state.buffers.items() if path.endswith("running_var"))


@pytest.mark.parametrize("cls", [FedAvgM, FedOpt, FedAdam, FedYogi, FedAdagrad], ids=lambda cls: cls.name)
def test_their_state_stays_on_the_server(cls):
    mine, plain = (trained(toy_cell(a)) for a in (cls(), None))
    assert mine.meter.as_dict()["bytes"] == plain.meter.as_dict()["bytes"]
    assert mine.state.rows == {}
