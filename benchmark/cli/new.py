"""`fedspan new`: a working plugin and its test."""

from __future__ import annotations

import argparse
import datetime
import keyword
import re
import shlex
from pathlib import Path

from fedspan.benchmark.errors import UserError, did_you_mean
from fedspan.benchmark.registry import plugins

ALGORITHM = '''"""{title}."""

from typing import Annotated

from fedspan.benchmark.component import Aggregate, Component, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import log
from fedspan.benchmark.tree import Tree, scale


@algorithm("{name}")
class {title}(Component):
    """Authors {year} (venue), Eq. 1: say here what it does. As written it scales the mean update by `server_lr`."""

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
from fedspan.methods.algorithms.{name} import {title}


def test_the_server_scales_the_mean_update():
    agg = Aggregate({{}}, {{}}, {{}}, participants=2, clients=2, samples=8, protocol=Protocol(), round=0)
    delta, state = {title}(server_lr=0.5).server({{"w": torch.tensor([2.0, -4.0])}}, agg)
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
class {title}(Component):
    """Authors {year} (venue), Eq. 1: say here what it does. As written it penalises long representations."""

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

from fedspan.methods.addons.{name} import {title}


def test_the_penalty_is_the_mean_squared_length_of_the_representations():
    step = SimpleNamespace(features=torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    assert {title}(weight=0.5).penalty(step).item() == pytest.approx(0.5 * (25 + 1) / 2)
"""

DATASET = '''"""{title}."""

from pathlib import Path

import torch

from fedspan.benchmark.rng import generator
from fedspan.benchmark.task import Data, Dataset, Images, content_digest, dataset


@dataset("{name}")
class {title}(Dataset):
    """Authors {year}: say here what it is. As written it draws noise around one pattern per class."""

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

DATASET_TEST = """from fedspan.tasks.datasets.{name} import {title}


def test_every_class_is_in_both_splits(tmp_path):
    data = {title}(classes=3).prepare(tmp_path)
    assert data.shape == (1, 8, 8)
    for split, per_class in ((data.train, 50), (data.test, 20)):
        assert split.y.bincount().tolist() == [per_class] * 3
        assert len(split.x) == 3 * per_class


def test_it_is_the_same_every_time(tmp_path):
    assert {title}().prepare(tmp_path).digest == {title}().prepare(tmp_path).digest
"""

TEMPLATES = {
    "algorithm": ("methods/algorithms", ALGORITHM, "tests/methods", ALGORITHM_TEST),
    "addon": ("methods/addons", ADDON, "tests/methods", ADDON_TEST),
    "dataset": ("tasks/datasets", DATASET, "tests/tasks", DATASET_TEST),
}


def create(kind: str, name: str, root: Path) -> list[Path]:
    """Write the plugin `name` and its test below the checkout `root`; return both paths.

    Raises `UserError` for an unknown kind, an invalid or taken name, a folder that is not a checkout, or an existing
    file.
    """
    if kind not in TEMPLATES:
        raise UserError(f"cannot make a new '{kind}'{did_you_mean(kind, TEMPLATES)}")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UserError(f"'{name}' must be lower case letters, digits and _, beginning with a letter")
    if keyword.iskeyword(name):
        raise UserError(f"'{name}' is a word of Python; choose another name")
    if name in plugins(kind):
        raise UserError(f"{kind} '{name}' already exists: {plugins(kind)[name].__module__}")
    folder, plugin, test_folder, test = TEMPLATES[kind]
    files = {root / folder / f"{name}.py": plugin, root / test_folder / f"test_{name}.py": test}
    for path in files:
        if not path.parent.is_dir():
            raise UserError(f"there is no {path.parent}; run this in a checkout of FedSpan")
        if path.exists():
            raise UserError(f"{path} already exists; choose another name")
    title = "".join(part.capitalize() for part in name.split("_"))
    for path, template in files.items():
        path.write_text(template.format(name=name, title=title, year=datetime.date.today().year))
    return list(files)


def make(arguments: argparse.Namespace) -> int:
    """Write a plugin and its test into the checkout in the working folder."""
    if len(arguments.words) != 2:
        raise UserError("write: fedspan new algorithm|addon|dataset NAME")
    kind, name = arguments.words
    plugin, test = create(kind, name, Path.cwd())
    setting = f"addons=[{name}]" if kind == "addon" else f"{kind}={name}"
    print(f"{plugin.relative_to(Path.cwd())}  try it: fedspan run {shlex.quote(setting)} protocol.rounds=2")
    print(f"{test.relative_to(Path.cwd())}  run it: pytest {test.relative_to(Path.cwd())}")
    return 0
