import pytest
import torch

from fedspan.benchmark.errors import Incompatible, UserError
from fedspan.benchmark.fleet import Fleet, Turn
from fedspan.methods.addons.swa import SWA
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.methods.algorithms.fedavgm import FedAvgM
from fedspan.methods.algorithms.local_only import LocalOnly
from tests.helpers import start, toy_cell
from tests.methods.by_hand import agree, finished, mean, numbers
from tests.toys import NormNet, toy


def models(run):
    """Return the global weights after every round."""
    after = []
    while not run.finished:
        run.advance()
        after.append(numbers(run.state.params))
    return after


def cell(*stack, rounds=8, **parts):
    return toy_cell(*stack, participation=0.5, protocol={"rounds": rounds, "precision": "float64"}, **parts)


@pytest.mark.parametrize(("start_at", "every", "averaged"), [
    (0.75, 1, [7, 8]), (0.5, 1, [5, 6, 7, 8]), (0.5, 3, [5, 8]), (0.0, 1, range(1, 9)), (0.9, 1, [8]),
])  # fmt: skip
@pytest.mark.parametrize("base", [FedAvg(), FedAvgM(rho=0.9)], ids=["fedavg", "fedavgm"])
def test_the_last_model_is_the_mean_of_those_of_the_last_rounds(start_at, every, averaged, base):
    running = models(start(cell(base)))
    run = start(cell(base, SWA(start=start_at, every=every)))
    found = models(run)
    for mine, plain in zip(found[:-1], running[:-1], strict=True):
        assert all((mine[path] == plain[path]).all() for path in plain), "training goes on from the running model"
    agree(run.state.params, mean([running[number - 1] for number in averaged], [1] * len(averaged)), 1e-12)


def test_where_no_weight_travels_there_is_no_model_to_average():
    with pytest.raises(Incompatible, match="'swa' works on updates, and 'local_only' lets none travel"):
        start(cell(LocalOnly(), SWA()))


def test_a_share_of_rounds_is_counted_in_decimals():
    """0.29 of 100 rounds are 29, though 0.29 * 100 is 28.999999999999996 in floating point."""
    assert SWA(start=0.29)._first(100) == 30


@toy("fleet", "toy_silent")
class Silent(Fleet):
    """Nothing arrives in some rounds, counted from 1."""

    rounds: tuple[int, ...] = ()

    def turns(self, work, draws):
        return [Turn(arrives=draws.round + 1 not in self.rounds)] * len(work)


@pytest.mark.parametrize("silent", [(5,), (8,), (5, 6), (7, 8)])
def test_a_round_from_which_nothing_arrives_counts_with_the_model_that_it_leaves(silent):
    running = models(start(cell(FedAvgM(rho=0.9), fleet=Silent(silent))))
    run = start(cell(FedAvgM(rho=0.9), SWA(start=0.5), fleet=Silent(silent)))
    found = models(run)
    for mine, plain in zip(found[:-1], running[:-1], strict=True):
        assert all((mine[path] == plain[path]).all() for path in plain), "momentum rests in an empty round"
    agree(run.state.params, mean(running[4:], [1] * 4), 1e-12)


@pytest.mark.parametrize("base", [FedAvg(), FedAvgM(statistics=True)], ids=["averaged", "moved like weights"])
def test_running_statistics_are_those_of_the_last_round(base):
    plain, averaged = (finished(start(toy_cell(base, *addons, model=NormNet()))) for addons in ((), (SWA(start=0.0),)))
    for path, leaf in plain.state.buffers.items():
        assert torch.equal(averaged.state.buffers[path], leaf)


@pytest.mark.parametrize(("values", "message"), [
    ({"start": 1.5}, r"addon\.swa\.start must lie in \[0, 1\], got 1.5"),
    ({"every": 0}, r"addon\.swa\.every must be at least 1, got 0"),
])  # fmt: skip
def test_settings_without_meaning_are_refused(values, message):
    with pytest.raises(UserError, match=message):
        SWA(**values)
