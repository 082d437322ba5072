"""One cell on two workers against the same cell in one process: `nox -s perf -- tests/perf/test_workers.py`."""

import resource
import time

import pytest

from fedspan.benchmark.running.cell_run import run_cell
from fedspan.benchmark.spec.compose import make_cell, resolve
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.training.process import settle
from fedspan.benchmark.training.run import Run
from fedspan.benchmark.training.workers.speedup import round_seconds
from fedspan.benchmark.training.workers.spread import dismiss, employ
from tests.perf.test_training import DIGITS, W1, photographs

pytestmark = pytest.mark.perf

ROUNDS = 10


def spread_run(cell, folder, workers=2):
    """Return a run whose workers are ready."""
    how = How(results=folder, data=folder)
    settle(how)
    run = Run(cell, how)
    employ(run, workers)
    if run.trainer.pool is not None:
        run.trainer.pool.wait()
    return run


def bound(run, workers=2):
    """Return the share of one core's time that the largest client leaves."""
    sizes = [run.trainer.data.size(client) for client in run.participants()]
    return round_seconds(sizes, workers) / sum(sizes)


@photographs
def test_w1_on_two_workers(compare, tmp_path):
    cell = make_cell(resolve(W1 | {"protocol.rounds": 100}))
    runs = [spread_run(cell, tmp_path, workers) for workers in (2, 1)]
    try:
        least = f"at most 0.556; its largest client allows {bound(runs[0]):.3f}"
        compare(runs[0].advance, runs[1].advance, against="one core", target=least, repeats=1)
    finally:
        dismiss(runs[0])


def test_a_digits_cell_on_two_workers(compare, tmp_path):
    cell, numbers = make_cell(resolve(DIGITS)), iter(range(100))

    def whole(workers):
        return lambda: run_cell(cell, How(results=tmp_path / str(next(numbers))), share=lambda run: workers) and None

    compare(whole(2), whole(1), against="one core, start of workers included", target="at most 0.667")


def test_ten_thousand_clients(benchmark, store, tmp_path):
    """The driver's processor seconds as a share of the wall clock's, and that its memory does not grow."""
    overrides = {
        "dataset": "digits", "model": "small_cnn", "clients": 1000, "participation": 0.1, "protocol.rounds": 1000,
        "partition": "iid", "protocol.local_epochs": 5,
    }  # fmt: skip
    run = spread_run(make_cell(resolve(overrides)), tmp_path)
    try:
        run.advance()
        before, memory = (time.process_time(), time.perf_counter()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        benchmark.pedantic(lambda: [run.advance() for _ in range(ROUNDS)], rounds=1)
        cpu, wall = time.process_time() - before[0], time.perf_counter() - before[1]
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
        store(cpu, wall, against=f"the wall clock; {grown / 1024:.0f} MiB more memory", target="at most 0.05")
    finally:
        dismiss(run)
