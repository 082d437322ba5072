import numpy as np
import pytest

from fedspan.benchmark.net import buffers_of
from fedspan.methods.algorithms.fednova import FedNova, effective_steps
from fedspan.tasks.partitions.iid import IID
from tests.methods.by_hand import agree, finished, fresh, mean, minus, numbers, plus, sizes, trained_by_hand
from tests.toys import Blobs, NormNet


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7, 100])
def test_effective_steps_are_the_length_of_the_way_along_a_constant_gradient(steps, momentum):
    velocity = way = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1
        way += velocity
    assert effective_steps(steps, momentum) == pytest.approx(way, rel=1e-12)


def accumulation(steps, momentum):
    """Return the paper's vector a_i for SGD with momentum: what each gradient of the round weighs at its end."""
    return np.array([sum(momentum**later for later in range(steps - first)) for first in range(steps)])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_all_rounds_average_normalised_updates(momentum, participation):
    run = fresh(FedNova(), participation=participation, protocol={"momentum": momentum})
    w = numbers(run.state.params)
    for round in range(run.cell.protocol.rounds):
        chosen, normalised, lengths = run.participants(), [], []
        for client in chosen:
            end, steps = trained_by_hand(run, w, client, round)
            lengths.append(accumulation(steps, momentum).sum())
            normalised.append({path: leaf / lengths[-1] for path, leaf in minus(end, w).items()})
        share = np.array(sizes(run, chosen)) / sum(sizes(run, chosen))
        assert len(set(lengths)) > 1, "all took the same number of steps"
        w = plus(w, mean(normalised, share), share @ lengths)
        run.advance()
        agree(run.state.params, w)


@pytest.mark.parametrize("statistics", [False, True])
def test_running_statistics_are_averaged_or_as_released_normalised_like_weights(statistics):
    run = fresh(FedNova(statistics=statistics), model=NormNet(), protocol={"rounds": 2})
    net = run.trainer.net
    while not run.finished:
        before, chosen, moves, lengths = numbers(run.state.buffers), run.participants(), [], []
        for client in chosen:
            steps = run.trainer.train(run.state, client).steps
            lengths.append(accumulation(steps, run.cell.protocol.momentum).sum() if statistics else 1.0)
            moved = minus(numbers(buffers_of(net)), before)
            moves.append({path: leaf / lengths[-1] for path, leaf in moved.items()})
        share = np.array(sizes(run, chosen)) / sum(sizes(run, chosen))
        run.advance()
        agree(run.state.buffers, plus(before, mean(moves, share), share @ lengths))


@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_with_equal_steps_it_is_fedavg(participation):
    parts = {"partition": IID(), "dataset": Blobs(train=96), "participation": participation}
    mine, plain = (finished(fresh(a, **parts)) for a in (FedNova(), None))
    assert len({mine.trainer.data.size(client) for client in range(6)}) == 1
    agree(mine.state.params, numbers(plain.state.params))
