"""Templates of `fedspan new`: a working plugin of each kind with its test, a board, and a pyproject.toml."""

ALGORITHM = '''"""{title}."""

from typing import Annotated

from fedspan.benchmark.component import Aggregate, Component, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import log
from fedspan.benchmark.tree import Tree, scale


@algorithm("{name}")
class {cls}(Component):
    """Authors {year} (venue), Eq. 1: say here what it does. As written it scales the mean update by `server_lr`."""

    title = "{title}"
    summary = "Scales the mean update on the server."
    papers = ()  # such as ("arXiv:1602.05629",)

    server_lr: Annotated[float, log(0.1, 1.0, source="ours")] = 0.5
    neutral = {{"server_lr": 1.0}}

    def __post_init__(self) -> None:
        require(self.server_lr > 0, "algorithm.server_lr", "must be positive", self.server_lr)

    def server(self, delta: Tree, agg: Aggregate) -> tuple[Tree, Tree]:
        return scale(delta, self.server_lr), dict(agg.server)
'''

ALGORITHM_TEST = """import torch

from fedspan.benchmark.component import Aggregate
from fedspan.benchmark.protocol import Protocol
from {module} import {cls}


def test_the_server_scales_the_mean_update():
    agg = Aggregate({{}}, {{}}, {{}}, participants=2, clients=2, samples=8, protocol=Protocol(), round=0)
    delta, state = {cls}(server_lr=0.5).server({{"w": torch.tensor([2.0, -4.0])}}, agg)
    assert delta["w"].tolist() == [1.0, -2.0]
    assert state == {{}}
"""

ADDON = '''"""{title}."""

from typing import Annotated

from torch import Tensor

from fedspan.benchmark.component import Component, Step, addon
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import log


@addon("{name}")
class {cls}(Component):
    """Authors {year} (venue), Eq. 1: say here what it does. As written it penalises long representations."""

    title = "{title}"
    summary = "Penalises long representations."
    papers = ()  # such as ("arXiv:1602.05629",)

    weight: Annotated[float, log(1e-3, 1.0, source="ours")] = 0.01
    neutral = {{"weight": 0.0}}

    def __post_init__(self) -> None:
        require(self.weight >= 0, "addon.{name}.weight", "must not be negative", self.weight)

    def penalty(self, step: Step) -> Tensor:
        return self.weight * step.features.square().sum(1).mean()
'''

ADDON_TEST = """from types import SimpleNamespace

import pytest
import torch

from {module} import {cls}


def test_the_penalty_is_the_mean_squared_length_of_the_representations():
    step = SimpleNamespace(features=torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    assert {cls}(weight=0.5).penalty(step).item() == pytest.approx(0.5 * (25 + 1) / 2)
"""

DATASET = '''"""{title}."""

from pathlib import Path

import torch

from fedspan.benchmark.rng import generator
from fedspan.benchmark.task import Data, Dataset, Images, content_digest, dataset


@dataset("{name}")
class {cls}(Dataset):
    """Authors {year}: say here what it is. As written it draws noise around one pattern per class."""

    title = "{title}"
    summary = "Noise around one pattern per class."
    papers = ()  # such as ("arXiv:1602.05629",)

    classes: int = 4

    def load(self, cache: Path) -> Data:
        draws = generator(0, "{name}")
        patterns = torch.randint(64, 192, (self.classes, 8, 8, 1), generator=draws)
        splits = []
        for per_class in (50, 20):
            y = torch.arange(self.classes).repeat_interleave(per_class)
            noise = torch.randint(-32, 33, (len(y), 8, 8, 1), generator=draws)
            splits.append(Images((patterns[y] + noise).to(torch.uint8), y))
        train, test = splits
        names = tuple(f"class {{number}}" for number in range(self.classes))
        pixels = train.x.double() / 255
        mean, std = (pixels.mean().item(),), (pixels.std(correction=0).item(),)
        return Data(train, test, names, mean, std, content_digest(train.x, train.y, test.x, test.y))
'''

DATASET_TEST = """from {module} import {cls}


def test_every_class_is_in_both_splits(tmp_path):
    data = {cls}(classes=3).prepare(tmp_path)
    assert data.shape == (1, 8, 8)
    for split, per_class in ((data.train, 50), (data.test, 20)):
        assert split.y.bincount().tolist() == [per_class] * 3
        assert len(split.x) == 3 * per_class


def test_it_is_the_same_every_time(tmp_path):
    assert {cls}().prepare(tmp_path).digest == {cls}().prepare(tmp_path).digest
"""

PARTITION = '''"""{title}."""

from collections.abc import Sequence

import numpy as np

from fedspan.benchmark.errors import require
from fedspan.benchmark.task import Partition, partition


@partition("{name}")
class {cls}(Partition):
    """Authors {year}: say here who holds what. As written client k holds `growth` times as much as k - 1."""

    title = "{title}"
    summary = "Client k holds more than client k - 1."
    papers = ()  # such as ("arXiv:1602.05629",)

    growth: float = 1.5

    def __post_init__(self) -> None:
        require(self.growth >= 1, "partition.growth", "must be at least 1", self.growth)

    def split(self, labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator) -> Sequence[np.ndarray]:
        shares = self.growth ** np.arange(clients)
        extra = np.cumsum(shares / shares.sum())[:-1] * (len(labels) - clients)
        cuts = extra.astype(int) + np.arange(1, clients)  # no client is empty
        return np.split(rng.permutation(len(labels)), cuts)
'''

PARTITION_TEST = """import numpy as np

from {module} import {cls}


def test_each_client_holds_twice_as_much_as_the_one_before():
    parts = {cls}(growth=2.0).split(np.zeros(703, int), 1, 3, np.random.default_rng(0))
    assert [len(part) for part in parts] == [101, 201, 401]
    assert sorted(np.concatenate(parts)) == list(range(703))
"""

FLEET = '''"""{title}."""

from collections.abc import Sequence

from fedspan.benchmark.errors import require
from fedspan.benchmark.fleet import Draws, Fleet, Turn, Work, fleet


@fleet("{name}")
class {cls}(Fleet):
    """Authors {year}: describe the availability of clients here. The template drops each client at its own rate."""

    title = "{title}"
    summary = "Each client is away in some rounds, at a rate of its own."
    papers = ()  # such as ("arXiv:1902.01046",)

    most: float = 0.5

    def __post_init__(self) -> None:
        require(0 <= self.most < 1, "fleet.most", "must lie in [0, 1)", self.most)

    def turns(self, work: Sequence[Work], draws: Draws) -> Sequence[Turn]:
        return [Turn(arrives=not self._away(one.client, draws)) for one in work]

    def _away(self, client: int, draws: Draws) -> bool:
        rate = self.most * draws.of_client("rate", client).random()
        return bool(draws.of_visit("away", client).random() < rate)
'''

FLEET_TEST = """from fedspan.benchmark.fleet import Draws, Work
from {module} import {cls}


def test_clients_are_away_in_some_rounds_and_never_at_rate_0():
    work = [Work(client=client, steps=4, steps_per_epoch=2, down=1, up=1) for client in range(20)]
    fleet = {cls}(most=0.9)
    rounds = {{tuple(turn.arrives for turn in fleet.turns(work, Draws(0, round))) for round in range(20)}}
    assert len(rounds) > 1
    assert all(turn.arrives for turn in {cls}(most=0.0).turns(work, Draws(0, 0)))
"""

MODEL = '''"""{title}."""

from torch import nn

from fedspan.benchmark.errors import require
from fedspan.benchmark.net import Net
from fedspan.benchmark.task import Model, model


@model("{name}")
class {cls}(Model):
    """Authors {year}: say here what it is. As written it has one hidden layer."""

    title = "{title}"
    summary = "One hidden layer."
    papers = ()  # such as ("arXiv:1602.05629",)

    width: int = 32

    def __post_init__(self) -> None:
        require(self.width >= 1, "model.width", "must be at least 1", self.width)

    def build(self, shape: tuple[int, int, int], classes: int) -> Net:
        channels, height, width = shape
        body = nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, self.width), nn.ReLU())
        return Net(body, nn.Linear(self.width, classes))
'''

MODEL_TEST = """import torch

from {module} import {cls}


def test_its_features_are_as_wide_as_asked():
    features, logits = {cls}(width=5).build((3, 8, 8), 4)(torch.zeros(2, 3, 8, 8))
    assert features.shape == (2, 5)
    assert logits.shape == (2, 4)
"""

BOARD = """# docs/boards.md lists every field.
title: "{title}: two methods, two partitions"
description: Say here which question this board answers.
base: # settings of every cell
  dataset: digits
  protocol: digits
  seed: [0, 1, 2] # a list is an axis
grid: # one mapping for each part of the grid
  - algorithm: [fedavg, fedprox]
    partition: dirichlet
    partition.alpha: [0.1, 0.5]
scales: # smaller than the grid as declared: scale=small, scale=smoke
  small: {{protocol.rounds: 10}}
  smoke: {{protocol.rounds: 2, protocol.local_epochs: 1, seed: 0}}
tables:
  - title: Test accuracy after the last round
    rows: [method]
    columns: [partition]
figures:
  - kind: accuracy
    title: Accuracy per round
"""

PROJECT = """[build-system]
requires = ["hatchling>=1.26"]
build-backend = "hatchling.build"

[project]
name = "fedspan-{dashed}"
version = "0.1.0"
description = "{title}, a plugin of FedSpan"
requires-python = ">=3.11"
dependencies = ["fedspan"]

[project.entry-points."fedspan.plugins"]
{name} = "fedspan_{name}"

[tool.hatch.build.targets.wheel]
only-include = ["fedspan_{name}.py"]
"""
