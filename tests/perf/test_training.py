"""The engine against federated averaging written by hand: the same model, images, batches and steps."""

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedspan.benchmark.net import Net
from fedspan.benchmark.spec.compose import make_cell, resolve
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.task import Data, Dataset, Images, Model
from fedspan.benchmark.training.process import set_up_process
from fedspan.benchmark.training.run import Run
from tests.helpers import toy_cell
from tests.perf.plain import LoaderLoop, PlainLoop
from tests.toys import toy

pytestmark = pytest.mark.perf

PHOTOS = Path(__file__).resolve().parents[3] / "shared" / "data" / "cifar10-jpeg.tar.xz"
photographs = pytest.mark.skipif(not PHOTOS.exists(), reason="needs cifar10-jpeg.tar.xz in ../shared/data")

W1 = {
    "dataset": "cifar10", "dataset.source": str(PHOTOS), "dataset.limit": 5000, "model": "mobilenet_v2",
    "protocol": "feddecorr_cifar10", "protocol.local_epochs": 1, "clients": 10, "partition.alpha": 0.5,
}  # fmt: skip
DIGITS = {"protocol": "digits", "partition.alpha": 0.5}


def run_of(cell, folder, executor="loop"):
    how = How(results=folder, data=folder, executor=executor)
    set_up_process(how)
    return Run(cell, how)


def plain_loop(run, kind=PlainLoop):
    """Return the loop by hand over the images of `run`, and its clients; the net is built anew in torch's format."""
    cell, protocol = run.cell, run.cell.protocol
    data, split = cell.dataset.prepare(run.how.data), run.trainer.data.indices
    net = cell.model.build(data.shape, len(data.classes))
    loop = kind(
        net, data, batch_size=protocol.batch_size, lr=protocol.lr, momentum=protocol.momentum,
        weight_decay=protocol.weight_decay, augment=protocol.augment != "none",
    )  # fmt: skip
    return loop, list(split)


def our_round(overrides, folder):
    """Prepare one round of local training and aggregation, again and again from the first weights."""
    run = run_of(make_cell(resolve(overrides)), folder)
    return lambda: run.aggregate(run.executor.run(run.state, run.participants())[0])


def plain_round(overrides, folder, kind=PlainLoop):
    """Prepare the same by hand."""
    cell = make_cell(resolve(overrides))
    loop, clients = plain_loop(Run(cell, How(results=folder, data=folder)), kind)
    return lambda: loop.federated(clients, 1, cell.protocol.local_epochs, test=False)


def arithmetic(make, folder, rounds=None):
    """Prepare what no engine can save: forward, loss and backward of every step, on batches that lie ready."""
    run = run_of(make(), folder)
    net, data, protocol = run.trainer.net, run.trainer.data, run.cell.protocol
    sizes = Counter(size for client in range(run.cell.clients) for size in data.batch_sizes(data.size(client)))
    x, y = next(iter(data.in_order(data.train, protocol.batch_size)))
    times = protocol.local_epochs * (rounds or protocol.rounds)

    def steps():
        for size, count in sizes.items():
            for _ in range(count * times):
                F.cross_entropy(net(x[:size])[1], y[:size]).backward()
                net.zero_grad()

    net.train()
    return steps


def w1():
    return make_cell(resolve(W1))


def digits():
    return make_cell(resolve(DIGITS))


@photographs
def test_w1_above_its_arithmetic(compare, aside, tmp_path):
    ours, floor = aside(our_round, W1, tmp_path), aside(arithmetic, w1, tmp_path, 1)
    compare(ours, floor, against="forward and backward alone", target="the floor is 1", repeats=1)


def test_w2_above_its_arithmetic(compare, aside, tmp_path):
    ours, floor = aside(our_w2, tmp_path, "loop"), aside(arithmetic, w2, tmp_path, 1)
    compare(ours, floor, against="forward and backward alone", target="the floor is 1")


def test_a_digits_cell_above_its_arithmetic(compare, aside, tmp_path):
    ours, floor = aside(our_digits, tmp_path, "loop"), aside(arithmetic, digits, tmp_path)
    compare(ours, floor, against="forward and backward alone", target="the floor is 1")


@photographs
def test_w1_float32(compare, aside, tmp_path):
    ours, plain = aside(our_round, W1, tmp_path), aside(plain_round, W1, tmp_path)
    compare(ours, plain, against="plain loop in the default format", target="at most 0.667", repeats=1)


@photographs
def test_w1_bfloat16(compare, aside, tmp_path):
    ours = aside(our_round, W1 | {"protocol.precision": "bf16"}, tmp_path, numerics="native")
    plain = aside(plain_round, W1, tmp_path, numerics="native")
    compare(ours, plain, against="plain loop in float32", target="at most 0.5", repeats=1)


@photographs
def test_w1_against_a_loader(compare, aside, tmp_path):
    ours, usual = aside(our_round, W1, tmp_path), aside(plain_round, W1, tmp_path, LoaderLoop)
    compare(ours, usual, against="DataLoader of 2 workers with transforms per image", target="at most 0.556", repeats=1)


@photographs
def test_w1_memory(benchmark, store, aside, tmp_path):
    ours, plain = aside(our_round, W1, tmp_path), aside(plain_round, W1, tmp_path)
    benchmark.pedantic(lambda: (ours(), plain()), rounds=1)
    store(ours.peak / 2**30, plain.peak / 2**30, against="plain loop, whole process", target="at most 1.1", unit="GiB")


@photographs
def test_w1_time_outside_the_model(benchmark, store, tmp_path, monkeypatch):
    run = run_of(make_cell(resolve(W1 | {"dataset.limit": 1280})), tmp_path)
    seconds = {"model": 0.0}

    def timed(function):
        def call(*arguments, **options):
            start = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                seconds["model"] += time.perf_counter() - start

        return call

    monkeypatch.setattr(run.trainer, "outputs", timed(run.trainer.outputs))
    monkeypatch.setattr(F, "cross_entropy", timed(F.cross_entropy))
    monkeypatch.setattr(torch.Tensor, "backward", timed(torch.Tensor.backward))
    monkeypatch.setattr(
        "fedspan.benchmark.training.local.SGD.step",
        timed(__import__("fedspan.benchmark.training.local").local.SGD.step),
    )

    def one_round():
        seconds["model"], start = 0.0, time.perf_counter()
        run.aggregate(run.executor.run(run.state, run.participants())[0])
        seconds["round"] = time.perf_counter() - start

    benchmark.pedantic(one_round, rounds=1, warmup_rounds=1)
    outside = seconds["round"] - seconds["model"]
    store(
        outside, seconds["round"], target="at most 0.02",
        against="the whole round; ours is what lies outside forward, loss, backward and optimiser",
    )  # fmt: skip


@toy("model", "mcmahan_cnn")
class McMahanCNN(Model):
    """The CNN of McMahan et al. 2017 (AISTATS), Sec. 3: 1,663,370 parameters."""

    def build(self, shape: tuple[int, int, int], classes: int) -> Net:
        body = nn.Sequential(
            nn.Conv2d(shape[0], 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64 * (shape[1] // 4) * (shape[2] // 4), 512), nn.ReLU(),
        )  # fmt: skip
        return Net(body, nn.Linear(512, classes))


@toy("dataset", "noise28")
class Noise(Dataset):
    """5,000 images of 28x28 noise in ten classes."""

    def load(self, cache: Path) -> Data:
        x = torch.randint(0, 256, (5000, 28, 28, 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        images = Images(x, torch.arange(5000) % 10)
        return Data(images, images, tuple("0123456789"), (0.5,), (0.25,), "0" * 8)


def w2():
    from fedspan.tasks.partitions.iid import IID

    protocol = {"local_epochs": 1, "batch_size": 10, "lr": 0.05, "rounds": 10**6, "eval_every": 10**6}
    return toy_cell(dataset=Noise(), partition=IID(), model=McMahanCNN(), clients=100, protocol=protocol)


def our_w2(folder, executor):
    run = run_of(w2(), folder, executor)
    return lambda: run.aggregate(run.executor.run(run.state, run.participants())[0])


def plain_w2(folder):
    loop, clients = plain_loop(Run(w2(), How(results=folder, data=folder)))
    return lambda: loop.federated(clients, 1, 1, test=False)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_w2(compare, aside, tmp_path, executor):
    ours, plain = aside(our_w2, tmp_path, executor), aside(plain_w2, tmp_path)
    compare(ours, plain, against="plain loop", target="at most 0.769")


def our_digits(folder, executor, overrides=DIGITS):
    def whole():
        run = run_of(make_cell(resolve(overrides)), folder, executor)
        while not run.finished:
            run.advance()

    return whole


def plain_digits(folder, overrides=DIGITS):
    run = Run(make_cell(resolve(overrides)), How(results=folder, data=folder))
    loop, clients = plain_loop(run)
    return lambda: loop.federated(clients, run.cell.protocol.rounds, run.cell.protocol.local_epochs)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_digits_cell(compare, aside, tmp_path, executor):
    ours, plain = aside(our_digits, tmp_path, executor), aside(plain_digits, tmp_path)
    compare(ours, plain, against="plain loop", target="at most 0.5, and at most 12 s")


def grid(folder, workers):
    """Prepare a grid of twelve digits cells, from a new results folder each time."""
    numbers = iter(range(100))

    def work():
        command = [
            sys.executable, "-m", "fedspan.benchmark.cli.main", "run", "-m", "seed=" + ",".join(map(str, range(12))),
            "protocol=digits", f"workers={workers}", "tracking=false", f"paths.results={folder}/{next(numbers)}",
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"})

    return work


def test_twelve_cells_on_two_cores(compare, tmp_path):
    compare(
        grid(tmp_path / "two", 2), grid(tmp_path / "one", 1),
        against="on one core", target="at most 0.556", repeats=1,
    )  # fmt: skip


FIRST_STEP = """
import sys, time
begin = time.perf_counter()
import torch
torch_done = time.perf_counter()
import fedspan.benchmark.cli.main, fedspan.benchmark.cli.run
ours = time.perf_counter() - torch_done
from fedspan.benchmark.training.local import LocalTrainer
step = LocalTrainer.step
def first(self, *arguments):
    step(self, *arguments)
    print("measured", time.perf_counter() - begin, ours, file=sys.stderr, flush=True)
    raise SystemExit(3)
LocalTrainer.step = first
sys.argv = ["fedspan", "run", "tracking=false", "protocol.rounds=1", "paths.results=" + sys.argv[1]]
fedspan.benchmark.cli.main.main()
"""


def test_start_to_the_first_step(benchmark, store, tmp_path):
    def start():
        command = [sys.executable, "-c", FIRST_STEP, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        words = done.stderr.split("measured")[1].split()
        measured["total"], measured["imports"] = float(words[0]), float(words[1])

    measured = {}
    benchmark.pedantic(start, rounds=2, warmup_rounds=1)
    store(
        measured["imports"], measured["total"], target="at most 1 s of at most 3 s",
        against="from the interpreter's start to the first step; ours is FedSpan's imports beyond torch's",
    )  # fmt: skip
