import dataclasses

import numpy as np
import pytest

from fedspan.benchmark.registry import plugins
from fedspan.benchmark.training.costs import costs
from fedspan.benchmark.training.scoring import score_stages
from fedspan.methods.addons.ccvr import CCVR
from fedspan.methods.addons.feddecorr import FedDecorr
from fedspan.methods.addons.ffc import FFC
from fedspan.methods.algorithms.centralized import Centralized
from fedspan.tasks.partitions.iid import IID
from tests.helpers import counted, start, toy_cell, trained
from tests.methods.by_hand import agree, batches, fresh, numbers, plain_gradient, sgd
from tests.toys import NormNet, Ragged, toy

ONE = {"clients": 1, "partition": IID()}
CURVES = ("accuracy", "loss", "train_loss")


def state(run):
    return {path: leaf.tolist() for path, leaf in (run.state.params | run.state.buffers).items()}


@pytest.mark.parametrize("addons", [(), (FedDecorr(),)], ids=["bare", "feddecorr"])
@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_it_is_one_client_with_everything_bit_for_bit(addons, participation):
    mine = trained(toy_cell(Centralized(), *addons, model=NormNet(), participation=participation))
    one = trained(toy_cell(None, *addons, model=NormNet(), **ONE))
    assert state(mine) == state(one)
    assert all(mine.curve[name] == one.curve[name] for name in CURVES)


def test_it_passes_over_all_images_and_nothing_travels():
    run = trained(toy_cell(Centralized(), participation=0.5))
    compute = counted(run)
    assert compute["images"] == 3 * 2 * 94
    assert compute["steps"] == 3 * 2 * 12
    assert compute["bytes"]["up"] == compute["bytes"]["down"] == 0
    assert run.state.rows == {}


@pytest.mark.parametrize("addon", [CCVR(), FFC(every=1)], ids=["ccvr", "ffc"])
def test_nothing_travels_for_a_calibration_either(addon, tmp_path):
    run = trained(toy_cell(Centralized(), addon))
    score_stages(run)
    assert run.meter.bytes == 0
    assert costs(run.cell, tmp_path).scores()["bytes"] == 0


def test_it_is_plain_sgd_on_the_pooled_images():
    run = fresh(Centralized())
    w, p = numbers(run.state.params), run.cell.protocol
    for round in range(p.rounds):
        seen = batches(run, 0, round)
        assert sum(len(y) for _, y in seen) == 2 * 94
        w, _ = sgd(w, seen, plain_gradient, p.lr_at(round), p.momentum, p.weight_decay)
        run.advance()
    agree(run.state.params, w)


def test_images_that_nobody_holds_are_not_trained_on():
    @toy("partition", "half")
    class Half(Ragged):
        def split(self, labels, classes, clients, rng):
            return [part[: (len(part) + 1) // 2] for part in super().split(labels, classes, clients, rng)]

    run = start(toy_cell(Centralized(), partition=Half()))
    held = sum(len(indices) for indices in run.trainer.data.indices)
    assert held < 60
    assert run.trainer.data.size(0) == held


def test_a_calibration_still_asks_every_client():
    run = trained(toy_cell(Centralized(), CCVR()))
    assert score_stages(run)["calibrated"]["accuracy"] is not None
    assert len(run.trainer.data.indices) == 6


def test_the_images_per_class_that_a_hook_sees_are_everybodys():
    run = start(toy_cell(Centralized()))
    assert run.trainer.data.counts(0).tolist() == np.bincount(run.trainer.data.train.y.numpy()).tolist()


def test_no_other_algorithm_pools_images():
    assert [name for name, cls in plugins("algorithm").items() if cls.one_client] == ["centralized"]


def test_its_result_does_not_depend_on_how_images_are_split():
    cell = toy_cell(Centralized())
    other = dataclasses.replace(cell, partition=IID(), clients=4)
    assert state(trained(cell)) == state(trained(other))
