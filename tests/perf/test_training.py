import copy
from pathlib import Path

import pytest
import torch

from benchmark.config import make_cell, resolve
from benchmark.rounds import How, Run
from tests.perf.plain import PlainLoop

pytestmark = pytest.mark.perf

PHOTOS = Path(__file__).resolve().parents[3] / "shared" / "data" / "cifar10-jpeg.tar.xz"


def start(overrides, tmp_path):
    return Run(make_cell(resolve(overrides)), How(results=tmp_path, data=tmp_path))


def plain(run):
    protocol = run.cell.protocol
    data = run.cell.dataset.prepare(run.how.data)
    return PlainLoop(
        copy.deepcopy(run.trainer.net), data, batch_size=protocol.batch_size, lr=protocol.lr,
        momentum=protocol.momentum, weight_decay=protocol.weight_decay, augment=protocol.augment != "none",
    )  # fmt: skip


def test_local_training_of_mobilenet_on_photographs(compare, tmp_path):
    if not PHOTOS.exists():
        pytest.skip("needs cifar10-jpeg.tar.xz in ../shared/data")
    run = start(
        {
            "dataset": "image_folder", "dataset.root": str(PHOTOS), "dataset.limit": 2000, "model": "mobilenet_v2",
            "protocol": "feddecorr_cifar10", "protocol.local_epochs": 1, "clients": 10, "partition": "iid",
        },
        tmp_path,
    )  # fmt: skip
    loop, mine = plain(run), run.trainer.data.indices[0]
    compare(
        lambda: run.trainer.train(run.state, 0), lambda: loop.train(mine, 1),
        against="a plain PyTorch loop", target="at most 1.05",
    )  # fmt: skip


def test_a_digits_cell(compare, tmp_path):
    overrides = {"protocol": "digits", "partition.alpha": 0.5}

    def ours():
        run = start(overrides, tmp_path)
        while not run.finished:
            run.advance()

    run = start(overrides, tmp_path)
    loop, clients = plain(run), list(run.trainer.data.indices)
    protocol = run.cell.protocol
    compare(
        ours, lambda: loop.federated(clients, protocol.rounds, protocol.local_epochs),
        against="a plain PyTorch loop", target="at most 12 s",
    )  # fmt: skip


def test_feddecorr_costs_little(compare, tmp_path):
    batch = {"model": "mobilenet_v2", "dataset.limit": 128, "clients": 1, "partition": "iid", "protocol.batch_size": 64}
    bare = start({**batch, "protocol.local_epochs": 1}, tmp_path)
    with_addon = start({**batch, "protocol.local_epochs": 1, "addons": ["feddecorr"]}, tmp_path)
    torch.manual_seed(0)
    compare(
        lambda: with_addon.trainer.train(with_addon.state, 0), lambda: bare.trainer.train(bare.state, 0),
        against="FedAvg", target="at most 1.05", repeats=5,
    )  # fmt: skip
