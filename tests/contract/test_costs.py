"""What shapes alone tell of a cell's cost is what training it measures, for every registered method."""

from dataclasses import replace

import numpy as np
import pytest

from fedspan.benchmark.task import Partition
from fedspan.benchmark.training.costs import costs
from fedspan.benchmark.training.scoring import score_stages
from fedspan.benchmark.training.traffic import classifier_cost
from fedspan.methods.addons import spherefed
from fedspan.methods.addons.babu import BABU
from fedspan.methods.addons.ffc import FFC
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.methods.algorithms.lg_fedavg import LGFedAvg

from ..helpers import toy_cell, trained
from ..toys import CLASSES, Blobs, NormNet, toy
from .test_components import cell_of, every_net, every_stack

CLIENTS, BATCH = 4, 6


@toy("partition", "quarters")
class Quarters(Partition):
    """Equal shares, in which every class has as many images."""

    def split(self, labels, classes, clients, rng):
        return np.split(np.arange(len(labels)), clients)


def batches_of(run):
    return len(list(run.trainer.data.epoch(0, 0, 0)))


@every_stack
@every_net
def test_the_costs_of_shapes_are_those_of_training(stack, model, tmp_path):
    images = CLIENTS * 2 * BATCH
    cell = cell_of(
        stack, model=model, dataset=Blobs(train=images), partition=Quarters(), clients=CLIENTS, participation=0.5,
        protocol={"rounds": 2, "local_epochs": 2, "batch_size": BATCH},
    )  # fmt: skip
    assert images % CLASSES == 0
    run, told = trained(cell), costs(cell, tmp_path)
    counted = run.meter
    rounds, here = told.rounds, told.clients_a_round
    assert rounds * here == counted.visits
    assert (here * told.up, here * told.down) == (counted.bytes_up, counted.bytes_down)
    assert rounds * told.round_flops == counted.flops["train"]
    assert told.scores()["round_gflop"] * 1e9 == pytest.approx(told.round_flops)
    assert told.scores()["train_gflop"] * 1e9 == pytest.approx(counted.flops["train"])
    assert rounds * told.images == counted.images
    waiting = (batches_of(run) - 1) * BATCH * (6 * 6 * 2 * 4 + 8)  # of the same epoch, augmented at once
    assert told.memory == pytest.approx(counted.memory["train"] - waiting, rel=0.02)
    assert told.parameters == sum(leaf.numel() for leaf in run.state.params.values())
    score_stages(run)
    sent, received, flops = counted.calibration_up, counted.calibration_down, counted.flops.get("calibrate", 0)
    if told.calibration.flops is not None:
        assert (told.calibration.up, told.calibration.down, told.calibration.flops) == (sent, received, flops)
        classifier = classifier_cost(run.trainer, run.state)
        assert told.scores()["classifier_gflop"] * 1e9 == pytest.approx(classifier["flops"])
        assert told.classifier_bytes == pytest.approx(classifier["bytes_of_one_client"])


def test_the_rounds_of_a_warm_up_cost_what_they_cost(tmp_path):
    cell = toy_cell(LGFedAvg(warm_up=0.25), model=NormNet(), protocol={"rounds": 8})
    run, told = trained(cell), costs(cell, tmp_path)
    assert (told.clients * told.up, told.clients * told.down) == (run.meter.bytes_up, run.meter.bytes_down)
    assert told.scores()["bytes"] == run.meter.bytes
    assert told.scores()["bytes_per_client_round"] == run.meter.bytes / run.meter.visits


def test_costs_do_not_solve_for_weights_that_only_have_a_shape(tmp_path, monkeypatch):
    def solved(*_):
        raise AssertionError("the values of weights were computed")

    monkeypatch.setattr(spherefed, "spread_rows", solved)
    tammes, random = (toy_cell(FedAvg(), spherefed.SphereFed(head=head)) for head in ("tammes", "random"))
    assert costs(tammes, tmp_path) == costs(random, tmp_path)


PARTS = {"dataset": Blobs(train=48), "partition": Quarters(), "clients": 4}


@pytest.mark.parametrize("rounds", [4, 5])
@pytest.mark.parametrize(
    "addons",
    [[FFC(every=2)], [BABU(), FFC(every=2)], [spherefed.SphereFed(every=2)]],
    ids=["trained head", "initial head", "orthonormal head"],
)
def test_calibrations_between_rounds_cost_what_they_cost(rounds, addons, tmp_path):
    cell = toy_cell(None, *addons, **PARTS, protocol={"rounds": rounds, "batch_size": 6})
    run, told = trained(cell), costs(cell, tmp_path)
    score_stages(run)
    meter = run.meter
    assert (told.calibration.up, told.calibration.down) == (meter.calibration_up, meter.calibration_down)
    assert told.calibration.flops == meter.flops["calibrate"]


def test_clients_that_join_by_chance_cost_what_is_expected(tmp_path):
    poisson = {"rounds": 2, "sampling": "poisson"}
    told, whole = (
        costs(toy_cell(**PARTS, protocol=poisson, participation=share), tmp_path).scores() for share in (0.1, 1.0)
    )
    assert told["bytes"] == pytest.approx(0.1 * whole["bytes"])
    assert told["train_gflop"] == pytest.approx(0.1 * whole["train_gflop"], rel=1e-3)


def test_images_that_a_trial_holds_out_cost_no_training(tmp_path):
    cell = toy_cell(**PARTS, protocol={"rounds": 2, "batch_size": 3, "validation": 0.25})
    run, told = trained(cell), costs(cell, tmp_path)
    assert 2 * told.images == run.meter.images
    assert 2 * told.round_flops == run.meter.flops["train"]


def test_images_of_clients_that_never_train_cost_no_training(tmp_path):
    cell = toy_cell(**PARTS)
    assert costs(replace(cell, unseen=0.25), tmp_path).images == costs(cell, tmp_path).images * 3 // 4
