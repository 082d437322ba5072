"""Host memory of methods with and without state per client, measured in processes of their own."""

import ctypes
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
import torch

from fedspan.benchmark.registry import plugins
from fedspan.benchmark.task import Data, Dataset, Images
from fedspan.benchmark.training.executors.round_sums import RoundSums
from fedspan.benchmark.training.process import keep_freed_memory
from fedspan.benchmark.training.saving import resume, save
from fedspan.benchmark.tree import nbytes
from fedspan.methods.algorithms.scaffold import Scaffold
from fedspan.tasks.models.mobilenet_v2 import MobileNetV2
from fedspan.tasks.partitions.iid import IID
from tests import memory
from tests.helpers import start, toy_cell, trained
from tests.methods.by_hand import finished
from tests.toys import NormNet, PlainNet, toy

MIB, GIB = 2**20, 2**30
WITH_ROWS = {  # and fedbn, where there is BatchNorm
    "apfl", "ditto", "elastic", "fedala", "fedamp", "feddc", "feddyn", "fedper", "fedproto", "fedrep", "fedrod",
    "fedsmoo", "fedspeed", "lg_fedavg", "local_only", "moon", "pfedme", "scaffold",
}  # fmt: skip

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@toy("dataset", "coloured_noise")
class Noise(Dataset):
    """Random images of `size` x `size` pixels."""

    images: int = 10_000
    size: int = 6

    def load(self, cache):
        rng = np.random.default_rng(0)

        def images(n):
            x = rng.integers(0, 256, (n, self.size, self.size, 3), dtype=np.uint8)
            return Images(torch.from_numpy(x), torch.arange(n) % 10)

        return Data(
            images(self.images),
            images(20),
            tuple("abcdefghij"),
            (0.5,) * 3,
            (0.3,) * 3,
            f"{self.images:08}{self.size:08}",
        )


def alone(function, *inputs, begin="spawn"):
    """Run a function in a process of its own, whose peak of memory is its own."""
    with ProcessPoolExecutor(1, mp_context=get_context(begin)) as pool:
        return pool.submit(function, *inputs).result()


def peak(clients, names):
    """Return the peak of memory (bytes) after 80 visits of clients with one image each, under every algorithm."""
    torch.set_num_threads(1)
    parts = {"dataset": Noise(images=clients), "model": PlainNet(width=3000), "partition": IID(), "clients": clients}
    ctypes.CDLL(None).malloc_trim(0)  # a fork has free memory of its parent's, in which a leak would not show
    memory.reset_peak()  # imports have one of their own
    for name in names:
        algorithm = plugins("algorithm")[name]()
        protocol = {"rounds": 8, "local_epochs": 1, "eval_every": 8}
        finished(start(toy_cell(algorithm, participation=10 / clients, protocol=protocol, **parts)))
    return memory.peak()


@pytest.mark.slow
@linux
def test_stateless_methods_take_the_same_memory_with_10_and_with_10000_clients():
    """A model is 1.3 MB: a copy of it per client that took part would be 107 MB, for each of them."""
    names = sorted(set(plugins("algorithm")) - WITH_ROWS - {"centralized"})
    few, many = (alone(peak, clients, names, begin="fork") for clients in (10, 10_000))
    assert many - few < 64 * MIB, f"{few / MIB:.0f} MiB with 10 clients, {many / MIB:.0f} MiB with 10,000"


@pytest.mark.parametrize("name", plugins("algorithm"))
@pytest.mark.parametrize("model", [PlainNet(), NormNet()], ids=["plain", "batchnorm"])
def test_only_methods_that_need_it_keep_something_per_client(name, model):
    run = trained(toy_cell(plugins("algorithm")[name](), model=model, participation=0.2, protocol={"rounds": 2}))
    keeps = name in WITH_ROWS or (name == "fedbn" and model.name == "norm_net")
    assert bool(run.state.rows) == keeps
    assert len(run.state.rows) <= 2, "clients that never trained are remembered"


@pytest.mark.parametrize("name", plugins("algorithm"))
def test_the_server_never_holds_the_updates_of_single_clients(name, monkeypatch):
    run = start(toy_cell(plugins("algorithm")[name]()))
    held = []
    add = RoundSums.add

    def watched(self, done):
        add(self, done)
        trees = [self._delta, self._buffers, *self._uploads.values()]
        held.append(sum(nbytes(tree) for tree in trees))

    monkeypatch.setattr(RoundSums, "add", watched)
    run.advance()
    assert held == held[:1] * len(held)


def large_run(clients):
    torch.set_num_threads(1)
    keep_freed_memory()
    protocol = {"rounds": 1000, "local_epochs": 1, "eval_every": 1000}  # no evaluation before the checkpoint
    data = Noise(images=clients, size=16)
    return start(
        toy_cell(Scaffold(), dataset=data, model=MobileNetV2(), partition=IID(), clients=clients, participation=0.01,
                 protocol=protocol)
    )  # fmt: skip


def scaffold_peak(clients, folder):
    """Return (bytes of all rows, peak of memory) after every client of MobileNetV2 trained once, 1% at a time."""
    run = large_run(clients)
    for first in range(0, clients, 10):
        sums, _ = run.executor.run(run.state, range(first, first + 10))
        run.aggregate(sums)
        run.state.round += 1
    save(run, folder / "checkpoint")
    rows = sum(nbytes(tree) for row in run.state.rows.values() for tree in row.states.values())
    return rows, memory.peak()


def resumed_peak(clients, folder):
    """Return the peak of memory after a resume and one more round."""
    run = large_run(clients)
    assert resume(run, folder / "checkpoint")
    assert len(run.state.rows) == clients
    sums, _ = run.executor.run(run.state, run.participants())
    run.aggregate(sums)
    return memory.peak()


@linux
@pytest.mark.slow
def test_a_thousand_clients_of_mobilenet_v2_with_scaffold_fit_into_12_gib(tmp_path):
    rows, first = alone(scaffold_peak, 1000, tmp_path)
    again = alone(resumed_peak, 1000, tmp_path)
    assert rows > 8 * GIB, "not every client kept its variate"
    assert first < 12 * GIB, f"{first / GIB:.1f} GiB"
    assert again < 12 * GIB, f"{again / GIB:.1f} GiB after a resume"
