"""One cell on two workers against the same cell in one process: `nox -s perf -- tests/perf/test_workers.py`."""

import resource
import time

import pytest
import torch

from fedspan.benchmark.running.cell_run import run_cell
from fedspan.benchmark.spec.compose import make_cell, resolve
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.task import Data, Dataset, Images, content_digest
from fedspan.benchmark.training.process import set_up_process
from fedspan.benchmark.training.run import Run
from fedspan.benchmark.training.workers.schedule import round_seconds
from fedspan.benchmark.training.workers.spread import start_workers, stop_workers
from fedspan.tasks.models.small_cnn import SmallCNN
from fedspan.tasks.partitions.iid import IID
from tests.helpers import toy_cell
from tests.perf.test_training import DIGITS, W1, photographs
from tests.toys import toy
from tests.training.rounds import simulated

pytestmark = pytest.mark.perf

ROUNDS = 10


@toy("dataset", "noise")
class Noise(Dataset):
    """Many images of nothing, each 3 x 32 x 32."""

    def load(self, cache):
        draws = torch.Generator().manual_seed(0)

        def images(n):
            x = torch.randint(0, 256, (n, 32, 32, 3), generator=draws, dtype=torch.uint8)
            return Images(x, torch.arange(n) % 10)

        train, test = images(50_000), images(1000)
        classes = tuple("0123456789")
        return Data(train, test, classes, (0.5,) * 3, (0.25,) * 3, content_digest(train.x, test.x))


@pytest.fixture
def spread(tmp_path):
    """Return a function that starts a cell on so many workers."""
    runs = []

    def begin(cell, workers):
        how = How(results=tmp_path, data=tmp_path)
        set_up_process(how)
        runs.append(Run(cell, how))
        start_workers(runs[-1], workers)
        return runs[-1]

    yield begin
    for run in runs:
        stop_workers(run)


def bound(run, workers=2):
    """Return the share of one core's time that the largest client leaves."""
    sizes = [run.trainer.data.size(client) for client in run.participants()]
    return round_seconds(sizes, workers) / sum(sizes)


@photographs
def test_w1_on_two_workers(compare, spread):
    two, one = (spread(make_cell(resolve(W1 | {"protocol.rounds": 100})), workers) for workers in (2, 1))
    least = f"at most 0.556; its largest client allows {bound(two):.3f}"
    compare(two.advance, one.advance, against="one core", target=least, repeats=1)


def test_a_digits_cell_on_two_workers(compare, tmp_path):
    cell, numbers = make_cell(resolve(DIGITS)), iter(range(100))

    def whole(workers):
        return lambda: run_cell(cell, How(results=tmp_path / str(next(numbers))), share=lambda run: workers) and None

    compare(whole(2), whole(1), against="one core, start of workers included", target="at most 0.667")


def test_ten_thousand_clients(benchmark, store, spread):
    """The driver's processor seconds as a share of the wall clock's, and that its memory does not grow."""
    cell = toy_cell(
        dataset=Noise(), model=SmallCNN(), clients=10_000, participation=0.01, partition=IID(),
        protocol={"rounds": 1000, "eval_every": 1000, "local_epochs": 5, "batch_size": 32},
    )  # fmt: skip
    run = spread(cell, 2)
    for _ in range(ROUNDS):
        run.advance()
    before, memory = (time.process_time(), time.perf_counter()), resident_bytes()
    benchmark.pedantic(lambda: [run.advance() for _ in range(ROUNDS)], rounds=1)
    cpu, wall = time.process_time() - before[0], time.perf_counter() - before[1]
    grown = (resident_bytes() - memory) / 2**20
    store(cpu, wall, against=f"the wall clock; {grown:.0f} MiB more memory after {ROUNDS} rounds more", target="0.05")


def resident_bytes():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_the_formula_for_64_workers_with_measured_clients(benchmark, store, spread):
    """A round of 64 workers, simulated with what 100 clients of unequal sizes take here."""
    run = spread(make_cell(resolve(DIGITS | {"clients": 100, "partition.min_size": 1})), 1)
    run.advance()
    clients = run.participants()

    def timed(client):
        began = time.perf_counter()
        run.trainer.train(run.state, client)
        return time.perf_counter() - began

    seconds = benchmark.pedantic(lambda: [timed(client) for client in clients], rounds=1)
    store(
        simulated(seconds, 64), round_seconds(seconds, 64), against="the formula, for 64 workers",
        target="1; at most the largest client above it",
    )  # fmt: skip
