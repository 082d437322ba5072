"""What every registered fleet must keep."""

import functools

import pytest
import torch

from fedspan.benchmark.fleet import WHOLE, Draws, Turn, Work
from fedspan.benchmark.registry import plugins
from fedspan.benchmark.training.executors.graph import Graph
from fedspan.benchmark.training.saving import resume, save
from fedspan.methods.algorithms.fednova import FedNova

from ..helpers import counted, start, toy_cell, trained, weights
from ..toys import CLIENTS
from .tape import Tapes

FLEETS = plugins("fleet")
every_fleet = pytest.mark.parametrize("cls", FLEETS.values(), ids=FLEETS.keys())
WORK = [Work(client=client, steps=5 * (client + 1), steps_per_epoch=client + 1, down=10, up=20) for client in range(40)]


@pytest.fixture(autouse=True)
def graphs_on_cpu(monkeypatch):
    monkeypatch.setattr(Graph, "machine", Tapes)


def cell_of(cls):
    """Return a cell whose method asks how many steps each client takes, and which starts clients of several sizes."""
    return toy_cell(FedNova(), fleet=cls(), protocol={"precision": "float64"})


@pytest.fixture(scope="module")
def reference():
    """Return what gives the run of a fleet in the reference executor; it is computed once for all tests."""
    return functools.cache(lambda cls: trained(cell_of(cls)))


FROM_DRAWS = "draw from `draws`, and keep nothing between rounds"


@every_fleet
def test_each_client_has_a_turn_that_can_be(cls):
    for round in range(3):
        turns = cls().turns(WORK, Draws(0, round))
        assert len(turns) == len(WORK)
        for work, turn in zip(WORK, turns, strict=True):
            assert isinstance(turn, Turn)
            assert turn.steps is None or 1 <= turn.steps <= work.steps
            assert turn.seconds is None or turn.seconds >= 0


@every_fleet
def test_turns_depend_on_seed_round_and_clients_alone(cls):
    before = torch.get_rng_state()
    later = cls().turns(WORK, Draws(3, 7))
    cls().turns(WORK[:5], Draws(3, 0))
    again = list(cls().turns(WORK, Draws(3, 7))) == list(later)
    assert again, f"the same seed, round and clients give other turns; {FROM_DRAWS}"
    assert torch.equal(before, torch.get_rng_state()), "turns() draws from PyTorch's global generator, not from `draws`"


@every_fleet
def test_a_fleet_is_in_the_key_only_if_it_acts(cls):
    cell = toy_cell(fleet=cls())
    assert ("fleet" in cell.what) == (cell.key != toy_cell().key) == cls().acts
    assert cell.settings["fleet"]["name"] == cls.name
    assert cls().acts or list(cls().turns(WORK, Draws(0, 0))) == [WHOLE] * len(WORK)


@every_fleet
@pytest.mark.parametrize("executor", ["vmap", "graph"])
def test_an_executor_gives_the_numbers_of_loop_under_every_fleet(cls, executor, reference):
    ours, theirs = trained(cell_of(cls), executor=executor), reference(cls)
    assert counted(ours) == counted(theirs)
    for name in ("lost", "cut", "empty_rounds", "simulated_seconds"):
        assert getattr(ours.meter, name) == getattr(theirs.meter, name)
    ours, theirs = ours.state.pack(), theirs.state.pack()
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name], leaf, rtol=1e-9, atol=1e-11) for name, leaf in theirs.items())


@every_fleet
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(cls, tmp_path, reference):
    first, whole = start(cell_of(cls)), reference(cls)
    first.advance()
    save(first, tmp_path / "checkpoint")
    second = start(cell_of(cls))
    assert resume(second, tmp_path / "checkpoint")
    while not second.finished:
        second.advance()
    assert weights(second) == weights(whole), f"a run that goes on from its checkpoint sees other turns; {FROM_DRAWS}"
    assert second.simulated_at_round == whole.simulated_at_round
    clock = {"seconds", "processor_seconds", "worker_seconds", "flops_of_step", "memory"}
    assert {k: v for k, v in vars(second.meter).items() if k not in clock} == {
        k: v for k, v in vars(whole.meter).items() if k not in clock
    }


@every_fleet
def test_every_visit_is_counted_and_what_is_lost_does_not_travel_up(cls, reference):
    meter, plain = reference(cls).meter, trained(toy_cell(FedNova(), protocol={"precision": "float64"})).meter
    assert meter.visits == plain.visits == 3 * CLIENTS
    assert meter.bytes_down == plain.bytes_down
    assert meter.bytes_up * meter.visits == plain.bytes_up * (meter.visits - meter.lost)
    assert (meter.steps == plain.steps) == (meter.cut == 0)
