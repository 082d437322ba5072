"""The recipes of docs/new-method.md are plugins that do what they say."""

import re
from pathlib import Path

import pytest
import torch

from fedspan.benchmark import registry
from fedspan.benchmark.registry import find
from fedspan.benchmark.training.scoring import score_stages
from fedspan.methods.algorithms.fedavg import FedAvg
from tests.helpers import start, toy_cell, trained

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "new-method.md").read_text()
RECIPES = re.findall(r"```python\n(.*?)```", PAGE.split("\n## Recipes\n")[1], re.DOTALL)


@pytest.fixture(autouse=True)
def recipes(tmp_path, monkeypatch):
    """Import the recipes, for one test."""
    registry.discover()
    monkeypatch.setattr(registry, "_plugins", {kind: dict(known) for kind, known in registry._plugins.items()})
    monkeypatch.setattr(registry, "_files", {})
    for number, text in enumerate(RECIPES):
        (tmp_path / f"recipe_{number}.py").write_text(text)
    registry.load_files([str(tmp_path)])


def test_every_recipe_is_tried_here():
    names = [name for text in RECIPES for name in re.findall(r'@\w+\("(\w+)"\)', text)]
    assert names == ["uniform", "remember", "prototypes", "balanced"]


def test_the_plain_mean_counts_every_client_the_same():
    cell = toy_cell(find("algorithm", "uniform")(), protocol={"rounds": 1, "precision": "float64"})
    alone = start(toy_cell(FedAvg(), protocol={"rounds": 1, "precision": "float64"}))
    deltas = [alone.trainer.train(alone.state, client).delta for client in range(cell.clients)]
    before, after = start(cell).state.params, trained(cell).state.params
    for path, leaf in after.items():
        mean = torch.stack([delta[path] for delta in deltas]).mean(0)
        torch.testing.assert_close(leaf - before[path], mean, rtol=1e-9, atol=1e-12)


def test_features_stay_nearer_to_those_of_the_last_model():
    cell = toy_cell(FedAvg(), find("addon", "remember")(weight=0.5))
    first, strong = start(cell).state, trained(cell).state
    weak = trained(toy_cell(FedAvg(), find("addon", "remember")(weight=0.0))).state
    assert any(not torch.equal(weak.params[path], strong.params[path]) for path in weak.params)
    kept = strong.rows[3].states["remember"]
    assert set(kept) == set(strong.params)
    assert not any(torch.equal(kept[path], first.params[path]) for path in kept), (
        "it remembers the first model for ever"
    )


def test_prototypes_choose_the_nearest_mean():
    draws = torch.Generator().manual_seed(0)
    features, y = torch.randn(40, 5, dtype=torch.float64, generator=draws), torch.arange(40) % 3
    nearest = (
        (features[:, None] - torch.stack([features[y == label].mean(0) for label in range(3)])).norm(dim=2).argmin(1)
    )
    component = find("addon", "prototypes")()
    params = {"body": torch.zeros(1), "head.weight": torch.zeros(3, 5).double(), "head.bias": torch.zeros(3).double()}
    halves = [component.stats(features[part], y[part], 3) for part in (slice(0, 7), slice(7, 40))]
    made = component.calibrate(params, {name: halves[0][name] + halves[1][name] for name in halves[0]}, None)
    assert torch.equal((features @ made["head.weight"].T + made["head.bias"]).argmax(1), nearest)
    assert made["body"] is params["body"]
    assert "calibrated" in score_stages(trained(toy_cell(FedAvg(), component)))


def test_the_loss_weighs_classes_of_a_client_the_same():
    loss = find("algorithm", "balanced")().loss
    logits, y = torch.randn(4, 3), torch.tensor([0, 0, 0, 1])
    step = type("Step", (), {"logits": logits, "y": y, "counts": torch.tensor([3.0, 1.0, 0.0])})
    each = torch.nn.functional.cross_entropy(logits, y, reduction="none")
    torch.testing.assert_close(loss(step), (each[:3].mean() + each[3]) / 2)
