"""FLOPs of every registered model are those of its layers' shapes, whoever executes it."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedspan.benchmark.registry import plugins
from fedspan.benchmark.task import Data, Dataset, Images, Partition
from fedspan.benchmark.training.executors import EXECUTORS
from fedspan.benchmark.training.executors.graph import Graph
from fedspan.benchmark.training.meter import Meter
from tests.contract.tape import Tapes
from tests.helpers import start, toy_cell
from tests.toys import toy

CLIENTS, IMAGES, SIDE = 2, 4, 32


@toy("dataset", "photographs")
class Photographs(Dataset):
    """A few RGB images of the papers' size."""

    def load(self, cache):
        x, y = torch.zeros(IMAGES, SIDE, SIDE, 3, dtype=torch.uint8), torch.arange(IMAGES) % 2
        return Data(Images(x, y), Images(x[:1], y[:1]), ("a", "b"), (0.5,) * 3, (0.5,) * 3, "0" * 8)


@toy("partition", "halves")
class Halves(Partition):
    """As many images to each client."""

    def split(self, labels, classes, clients, rng):
        return np.split(np.arange(len(labels)), clients)


def by_hand(net):
    """Return the FLOPs of a step per image: 2 for each product of a weight, forward and for both gradients.

    The layer that reads the images has no gradient of its input.
    """
    products = []

    def count(module, inputs, output):
        weights = math.prod(module.weight.shape[1:])  # read for one output number
        products.append(output.numel() // len(output) * weights)

    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.register_forward_hook(count)
    net(torch.zeros(2, 3, SIDE, SIDE, device="meta"))
    first, *others = products
    return 2 * (2 * first + 3 * sum(others))


@pytest.mark.parametrize("name", sorted(plugins("model")))
def test_the_flops_of_a_model_are_those_of_its_layers_under_every_executor(name, monkeypatch):
    monkeypatch.setattr(Graph, "machine", Tapes)
    model = plugins("model")[name]()
    once = {"rounds": 1, "local_epochs": 1, "batch_size": IMAGES // CLIENTS}
    cell = toy_cell(model=model, dataset=Photographs(), partition=Halves(), clients=CLIENTS, protocol=once)
    hand = by_hand(model.build((3, SIDE, SIDE), 2).to("meta"))
    for executor in EXECUTORS:
        run = start(cell, executor=executor)
        run.executor.run(run.state, run.participants())
        assert run.meter.flops["train"] / IMAGES == pytest.approx(hand, rel=0.01), executor


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_each_gradient_of_a_convolution_costs_as_much_as_its_output(kind, groups):
    layer = kind(4, 8, 3, stride=2, padding=1, groups=groups, bias=False)
    meter = Meter()
    for image_has_gradient in (False, True):
        x = torch.ones(3, 4, 9, 9, requires_grad=image_has_gradient)
        with meter.step("forward", str(image_has_gradient)):
            y = layer(x)
        with meter.step("backward", str(image_has_gradient)):
            y.sum().backward()
    forward, backward = meter.flops["forward"], meter.flops["backward"]
    assert backward == (1 + 2) * forward // 2
    positions = y[0, 0].numel() if kind is nn.Conv2d else 9 * 9
    assert forward == 2 * 2 * 3 * positions * (4 * 8 // groups) * 9
