"""Whole trajectories of released code: its equations written again in float64, from its own shapes.

Most are those of FedDecorr's code (2023), `ReleasedNTD` and `ReleasedDyn` those of their authors' (2022, 2021).
Nothing is shared with `methods`: the state of a net is one dictionary of weights and running statistics, as that code
averages it, and SGD is torch's. Models, first weights and batches are the engine's.
"""

import copy
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedspan.benchmark.net import Net
from fedspan.benchmark.task import Data, Dataset, Images, Partition
from fedspan.methods.addons.feddecorr import FedDecorr
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.methods.algorithms.fedavgm import FedAvgM
from fedspan.methods.algorithms.feddyn import FedDyn
from fedspan.methods.algorithms.fedlc import FedLC
from fedspan.methods.algorithms.fednova import FedNova
from fedspan.methods.algorithms.fedntd import FedNTD
from fedspan.methods.algorithms.fedrs import FedRS
from fedspan.methods.algorithms.fedsam import FedSAM
from fedspan.methods.algorithms.moon import Moon
from fedspan.tasks.models.resnet20 import ResNet20
from tests.helpers import start, toy_cell
from tests.toys import toy

SIZES = (5, 11, 10, 19)  # batches of 8: the last ones have 5, 3, 2 and 3 images
SHAPE, CLASSES = (3, 8, 8), 5
LR, MOMENTUM, DECAY = 0.01, 0.9, 1e-4
TOLERANCE = 1e-10


@toy("dataset", "tiles")
class Tiles(Dataset):
    """Noise of 8x8 pixels in five classes, 9 images of each."""

    def load(self, cache):
        rng = np.random.default_rng(0)

        def images(n):
            x = rng.integers(0, 256, (n, SHAPE[1], SHAPE[2], SHAPE[0]), dtype=np.uint8)
            return Images(torch.from_numpy(x), torch.arange(n) % CLASSES)

        return Data(images(sum(SIZES)), images(10), tuple("abcde"), (0.5,) * 3, (0.25,) * 3, "711e5" * 2)


@toy("partition", "class_by_class")
class ClassByClass(Partition):
    """Consecutive pieces of the images in order of their class: no client holds every class."""

    def split(self, labels, classes, clients, rng):
        return np.split(np.argsort(labels, kind="stable"), np.cumsum(SIZES)[:-1])


def begun(algorithm, *addons):
    protocol = {
        "rounds": 2, "local_epochs": 2, "batch_size": 8, "lr": LR, "momentum": MOMENTUM, "weight_decay": DECAY,
        "precision": "float64",
    }  # fmt: skip
    return start(
        toy_cell(algorithm, *addons, protocol=protocol, dataset=Tiles(), partition=ClassByClass(), clients=len(SIZES),
                 model=ResNet20())
    )  # fmt: skip


# the released code --------------------------------------------------------------------------------


def state_of(net):
    """Return what the released code averages: weights and running statistics, by name."""
    return {name: leaf.clone() for name, leaf in net.state_dict().items() if leaf.is_floating_point()}


def net_with(state, projection):
    """Return ResNet20, with MOON's projection between body and classifier, that holds `state`."""
    net = ResNet20().build(SHAPE, CLASSES)
    if projection:
        hidden, width = projection
        body = nn.Sequential(net.body, nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, width))
        net = Net(body, nn.Linear(width, CLASSES))
    net = net.double()
    net.load_state_dict(state, strict=False)
    return net


class Released:
    """FedAvg as released; methods replace the loss, the step, or what the server makes of the average."""

    projection = ()

    def __init__(self, run):
        self.run = run
        self.state = {
            name: leaf.clone(memory_format=torch.contiguous_format)
            for name, leaf in (run.state.params | run.state.buffers).items()
        }

    def loss(self, out, features, x, y, client):
        return F.cross_entropy(out, y)

    def forward(self, net, x, y, client):
        features, out = net(x)
        return self.loss(out, features, x, y, client)

    def step(self, net, optimiser, x, y, client):
        optimiser.zero_grad()
        self.forward(net, x, y, client).backward()
        optimiser.step()

    def train(self, client, round):
        """Return (state, number of steps) after a client's round."""
        net, steps = net_with(self.state, self.projection).train(), 0
        optimiser = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY, foreach=False)
        for epoch in range(2):
            for x, y in self.run.trainer.data.epoch(client, round, epoch):
                self.step(net, optimiser, x.contiguous(), y, client)
                steps += 1
        self.ended(client, net)
        return state_of(net), steps

    def ended(self, client, net):
        pass

    def serve(self, ends):
        """Return the next global state from the clients' (state, steps)."""
        shares = [size / sum(SIZES) for size in SIZES]
        return {
            name: sum(share * end[name] for share, (end, _) in zip(shares, ends, strict=True)) for name in self.state
        }

    def trained(self):
        for round in range(2):
            self.begin(round)
            self.state = self.serve([self.train(client, round) for client in range(len(SIZES))])
        return self.state

    def begin(self, round):
        pass

    def labels(self, client):
        data = self.run.trainer.data
        return data.train.y[data.indices[client]]


class ReleasedDecorr(Released):
    def loss(self, out, features, x, y, client):
        return super().loss(out, features, x, y, client) + 0.1 * self.decorrelation(features)

    def decorrelation(self, features):
        n, d = features.shape
        z = features - features.mean(0)
        z = z / (z.var(0) + 1e-8).sqrt()
        products = (z.T @ z).masked_select(~torch.eye(d, dtype=torch.bool))
        return products.square().mean() / n


class ReleasedAvgM(Released):
    rho = 0.9
    momentum = None

    def serve(self, ends):
        average = super().serve(ends)
        self.momentum = self.momentum or {name: torch.zeros_like(leaf) for name, leaf in average.items()}
        for name, old in self.state.items():
            self.momentum[name] = self.rho * self.momentum[name] + (1 - self.rho) * (average[name] - old)
        return {name: old + self.momentum[name] for name, old in self.state.items()}


class ReleasedNova(Released):
    def serve(self, ends):
        a = [(t - MOMENTUM * (1 - MOMENTUM**t) / (1 - MOMENTUM)) / (1 - MOMENTUM) for _, t in ends]
        shorter = [
            ({name: old + (end[name] - old) / a_i for name, old in self.state.items()}, t)
            for a_i, (end, t) in zip(a, ends, strict=True)
        ]
        average = super().serve(shorter)
        effective = sum(size / sum(SIZES) * a_i for size, a_i in zip(SIZES, a, strict=True))
        return {name: old + effective * (average[name] - old) for name, old in self.state.items()}


class ReleasedRS(Released):
    def loss(self, out, features, x, y, client):
        strength = torch.full((CLASSES,), 0.5, dtype=out.dtype)
        strength[self.labels(client).unique()] = 1.0
        return F.cross_entropy(out * strength, y)


class ReleasedLC(Released):
    def loss(self, out, features, x, y, client):
        counts = torch.zeros(CLASSES, dtype=out.dtype)
        for label in self.labels(client).tolist():
            counts[label] += 1
        return F.cross_entropy(out - 0.1 * counts**-0.25, y)  # minus infinity for a class without images


class ReleasedSAM(Released):
    def step(self, net, optimiser, x, y, client):
        optimiser.zero_grad()
        self.forward(net, x, y, client).backward()
        here = [leaf.detach().clone() for leaf in net.parameters()]
        length = torch.stack([leaf.grad.norm() for leaf in net.parameters()]).norm()
        with torch.no_grad():
            for leaf in net.parameters():
                leaf += leaf.grad * (0.05 / (length + 1e-12))
        optimiser.zero_grad()
        self.forward(net, x, y, client).backward()
        with torch.no_grad():
            for leaf, back in zip(net.parameters(), here, strict=True):
                leaf.copy_(back)
        optimiser.step()


class ReleasedMoon(Released):
    def __init__(self, run):
        super().__init__(run)
        self.previous = {
            client: net_with(run.state.row(client).states["moon"], self.projection).eval()
            for client in range(len(SIZES))
        }

    def begin(self, round):
        self.globe = net_with(self.state, self.projection).eval()

    def loss(self, out, features, x, y, client):
        near, far = (F.cosine_similarity(features, net(x)[0].detach()) for net in (self.globe, self.previous[client]))
        contrast = F.cross_entropy(torch.stack([near, far], 1), torch.zeros_like(y))
        return super().loss(out, features, x, y, client) + contrast

    def ended(self, client, net):
        self.previous[client] = copy.deepcopy(net).eval()


class ReleasedNTD(Released):
    """Its teacher's mode only matters with BatchNorm, which the released models lack: here it evaluates."""

    def begin(self, round):
        self.teacher = net_with(self.state, self.projection).eval()

    def forward(self, net, x, y, client):
        with torch.no_grad():
            wise = self.teacher(x)[1]
        _, out = net(x)
        others = torch.stack([torch.tensor([c for c in range(CLASSES) if c != label]) for label in y.tolist()])
        q = torch.softmax(wise.gather(1, others) / 1.0, dim=1)
        log_p = torch.log_softmax(out.gather(1, others) / 1.0, dim=1)
        return F.cross_entropy(out, y) + 1.0 * F.kl_div(log_p, q, reduction="batchmean")


class ReleasedDyn(Released):
    """Left out: alpha per share of images, clipped gradients; its SGD has momentum 0, and its models no BatchNorm.

    The quadratic term is weight decay there, over the weights alone; momentum is added to it like to every gradient.
    """

    alpha = 0.1

    def __init__(self, run):
        super().__init__(run)
        self.weights = list(run.state.params)
        self.drift = {
            client: {name: torch.zeros_like(self.state[name]) for name in self.weights} for client in range(4)
        }

    def train(self, client, round):
        net, steps = net_with(self.state, self.projection).train(), 0
        leaves = dict(net.named_parameters())
        optimiser = torch.optim.SGD(leaves.values(), lr=LR, momentum=MOMENTUM, weight_decay=self.alpha + DECAY)
        for epoch in range(2):
            for x, y in self.run.trainer.data.epoch(client, round, epoch):
                optimiser.zero_grad()
                linear = [(leaves[n] * (self.drift[client][n] - self.state[n])).sum() for n in self.weights]
                loss = F.cross_entropy(net(x.contiguous())[1], y) + self.alpha * sum(linear)
                loss.backward()
                optimiser.step()
                steps += 1
        end = state_of(net)
        for name in self.weights:
            self.drift[client][name] = self.drift[client][name] + end[name] - self.state[name]
        return end, steps

    def serve(self, ends):
        served = {name: torch.stack([end[name] for end, _ in ends]).mean(0) for name in self.state}
        for name in self.weights:
            served[name] = served[name] + torch.stack([drift[name] for drift in self.drift.values()]).mean(0)
        return served


class ReleasedMoonWithHead(ReleasedMoon):
    projection = (32, 16)  # half as wide as the features, and narrower


class ReleasedMoonWithHeadAndDecorr(ReleasedMoonWithHead):
    decorrelation = ReleasedDecorr.decorrelation

    def loss(self, out, features, x, y, client):
        return super().loss(out, features, x, y, client) + 0.1 * self.decorrelation(features)


# the comparison -----------------------------------------------------------------------------------

MOON = {"mu": 1.0, "temperature": 1.0, "previous": "untrained"}
METHODS = {
    "fedavg": (Released, (FedAvg(),)),
    "feddecorr": (ReleasedDecorr, (FedAvg(), FedDecorr(form="released", beta=0.1))),
    "fedavgm": (ReleasedAvgM, (FedAvgM(rho=0.9, damped=True, statistics=True),)),
    "fednova": (ReleasedNova, (FedNova(statistics=True),)),
    "fedrs": (ReleasedRS, (FedRS(alpha=0.5),)),
    "fedlc": (ReleasedLC, (FedLC(tau=0.1),)),
    "fedsam": (ReleasedSAM, (FedSAM(rho=0.05),)),
    "fedntd": (ReleasedNTD, (FedNTD(beta=1.0, tau=1.0),)),
    "feddyn": (ReleasedDyn, (FedDyn(alpha=0.1),)),
    "moon": (ReleasedMoon, (Moon(projection=(), **MOON),)),
    "moon with head": (ReleasedMoonWithHead, (Moon(projection=(32, 16), **MOON),)),
    "moon with head and feddecorr": (
        ReleasedMoonWithHeadAndDecorr, (Moon(projection=(32, 16), **MOON), FedDecorr(form="released", beta=0.1)),
    ),
}  # fmt: skip


@cache
def trajectory(name):
    """Return where the released code ends."""
    released, stack = METHODS[name]
    return released(begun(*stack)).trained()


def distance(state, other):
    assert state.keys() == other.keys()
    return max((leaf - other[name]).abs().max().item() for name, leaf in state.items())


@pytest.mark.parametrize("name", METHODS)
def test_two_rounds_end_where_the_released_code_ends(name):
    run = begun(*METHODS[name][1])
    for _ in range(2):
        sums, _ = run.executor.run(run.state, range(len(SIZES)))
        run.aggregate(sums)  # without scores: released FedNova can push a running variance below zero
        run.state.round += 1
    expected = trajectory(name)
    ours = run.state.params | run.state.buffers
    if name == "fedsam":  # its second pass moves BatchNorm's running statistics once more; training never reads them
        ours, expected = run.state.params, {path: expected[path] for path in run.state.params}
    assert distance(ours, expected) <= TOLERANCE


def test_the_clients_lack_classes_and_end_with_short_batches():
    data = begun(FedAvg()).trainer.data
    assert [len(data.train.y[part].unique()) for part in data.indices] == [1, 2, 2, 3]
    assert [[len(y) for _, y in data.epoch(client, 0, 0)] for client in range(4)] == [
        [5], [8, 3], [8, 2], [8, 8, 3]
    ]  # fmt: skip


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("fedavg", "moon with head")])
def test_the_released_code_of_each_method_is_not_fedavgs(name):
    """So a method that did nothing could not pass: its trajectory is thousands of tolerances away."""
    plain = trajectory("moon with head" if name == "moon with head and feddecorr" else "fedavg")
    assert distance(trajectory(name), plain) > 1e-4
