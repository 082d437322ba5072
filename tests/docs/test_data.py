"""The dataset of docs/data.md does what the page says."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedspan.benchmark import registry
from fedspan.tasks.datasets.digits import Digits
from fedspan.tasks.partitions.natural import Natural
from tests.helpers import toy_cell, trained

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
[SOURCE] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def noisy_digits(monkeypatch):
    """Return the page's dataset, which no registry keeps."""
    monkeypatch.setattr(registry, "_plugins", {kind: dict(known) for kind, known in registry._plugins.items()})
    known = {}
    exec(compile(SOURCE, str(PAGE), "exec"), known)
    return known["NoisyDigits"]


def test_noise_grows_from_client_to_client_and_spares_the_test_images(noisy_digits, tmp_path):
    plain, noisy = Digits().prepare(tmp_path), noisy_digits(sigma=0.001).prepare(tmp_path)
    assert (noisy.test.x == plain.test.x).all()
    assert (noisy.train.y == plain.train.y).all()
    inside = (plain.train.x > 60) & (plain.train.x < 195)  # where no noise is clipped
    noise = np.where(inside, (noisy.train.x.float() - plain.train.x.float()) / 255, np.nan)
    variances = [np.nanvar(noise[noisy.train.client == client]) for client in range(10)]
    assert variances == pytest.approx([0.001 * (client + 1) / 10 for client in range(10)], rel=0.15)


def test_its_people_are_clients_with_equal_shares(noisy_digits):
    run = trained(toy_cell(dataset=noisy_digits(people=6), partition=Natural(), protocol={"rounds": 1}))
    sizes = [run.trainer.data.size(client) for client in range(6)]
    assert sum(sizes) == 1438
    assert max(sizes) - min(sizes) <= 1
