"""Bytes of the classifier as SphereFed 2022, Table 1 counts them: per client, over 100 rounds, in 32 bits."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedspan.benchmark.net import Net
from fedspan.benchmark.task import Data, Dataset, Images, Model, Partition, content_digest
from fedspan.benchmark.training import stages
from fedspan.benchmark.training.scoring import score_stages
from fedspan.methods.addons.ccvr import CCVR
from fedspan.methods.addons.ffc import FFC
from fedspan.methods.addons.spherefed import SphereFed
from fedspan.methods.algorithms.fedavg import FedAvg
from tests.helpers import toy_cell, trained
from tests.toys import toy

WIDTH, CLASSES, CLIENTS, ROUNDS = 1280, 100, 10, 100
MB = 1e6


@toy("dataset", "one_each")
class OneEach(Dataset):
    """One pixel per class."""

    def load(self, cache):
        x = torch.arange(CLASSES, dtype=torch.uint8).reshape(-1, 1, 1, 1)
        images = Images(x, torch.arange(CLASSES))
        names = tuple(map(str, range(CLASSES)))
        return Data(images, images, names, (0.2,), (0.1,), content_digest(x))


@toy("partition", "one_image")
class OneImage(Partition):
    """A single image for each client."""

    def split(self, labels, classes, clients, rng):
        return [np.array([client]) for client in range(clients)]


class Spread(nn.Module):
    """As many features as MobileNetV2 has, from one weight: all that travels is the classifier, and 4 bytes."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * torch.cos(x.flatten(1) * torch.linspace(0, 1, WIDTH))


@toy("model", "classifier_alone")
class ClassifierAlone(Model):
    def build(self, shape, classes):
        return Net(Spread(), nn.Linear(WIDTH, classes, bias=False))


def run_of(*addons, rounds):
    cell = toy_cell(
        FedAvg(),
        *addons,
        dataset=OneEach(),
        partition=OneImage(),
        model=ClassifierAlone(),
        clients=CLIENTS,
        protocol={"rounds": rounds, "local_epochs": 1, "eval_every": rounds},
    )
    return trained(cell)


def rounds_megabytes(meter):
    """Return what a client sends and receives for the classifier in all rounds, without the body's 4 bytes."""
    return (meter.bytes_up + meter.bytes_down - 2 * 4 * meter.visits) / CLIENTS / MB


def test_fedavg_sends_the_classifier_both_ways_every_round():
    assert rounds_megabytes(run_of(rounds=ROUNDS).meter) == pytest.approx(102.4, abs=0.05)


def test_spherefed_sends_its_sums_once():
    run = run_of(SphereFed(), rounds=ROUNDS)
    assert rounds_megabytes(run.meter) == 0
    params, numbers = stages.calibrate(run.trainer, run.state, run.cell.seed), WIDTH * (WIDTH + CLASSES)
    assert params["head.weight"].shape == (CLASSES, WIDTH)
    assert run.meter.calibration_up == CLIENTS * numbers * 4
    assert run.meter.calibration_down == CLIENTS * 4
    assert run.meter.calibration_up / CLIENTS / MB == pytest.approx(7.07, abs=0.005)


def test_ccvr_sends_the_classifier_every_round_and_its_moments_once():
    """The statistics of two images, whose size is that of any number of images; all ten clients' would fill 1.3 GB."""
    stats = CCVR().stats(torch.zeros(2, WIDTH, dtype=torch.float64), torch.tensor([0, 5]), CLASSES)
    once = sum(leaf.numel() for leaf in stats.values()) * 4 / MB
    every = rounds_megabytes(run_of(rounds=1).meter)
    assert ROUNDS * every + once == pytest.approx(758.3, abs=0.05)


def test_bytes_are_known_by_the_round_in_which_they_travel():
    """A calibration between rounds counts when it happens; one after the last round is no part of any."""
    plain, once, twice = (trained(toy_cell(None, FFC(every=every), protocol={"rounds": 5})) for every in (0, 4, 2))
    each = plain.bytes_at_round[0]
    assert plain.bytes_at_round == [each, 2 * each, 3 * each, 4 * each, 5 * each]
    sent = once.bytes_at_round[3] - 4 * each
    assert sent > 0
    assert once.bytes_at_round == [each, 2 * each, 3 * each, 4 * each + sent, 5 * each + sent]
    assert twice.bytes_at_round == [each, 2 * each + sent, 3 * each + sent, 4 * each + 2 * sent, 5 * each + 2 * sent]
    before = plain.meter.bytes
    score_stages(plain)
    assert plain.meter.bytes > before == plain.bytes_at_round[-1]
