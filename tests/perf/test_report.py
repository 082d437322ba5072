"""The report of 10,000 records: at most 60 s of one core and 2 GiB are aimed at."""

import json
import random
import subprocess
import sys

import pytest

from fedspan.benchmark.spec.board import Figure, Table
from fedspan.benchmark.spec.plan import plan
from tests.report.made import board, record

pytestmark = pytest.mark.perf

RENDER = """
import sys, time
from pathlib import Path
import torch
from tests.perf.test_report import many
from fedspan.benchmark.spec.plan import plan
from tests import memory
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.report.report import write_report
from fedspan.benchmark.report import site
from fedspan.benchmark.report.report import put

start = time.process_time()
folder, board = Path(sys.argv[1]), many()
made = write_report(board, plan(board.expand()), Results(folder), folder / "pages")
for path, content in site.write(folder / "pages", [made.summary]).items():
    put(path, content)
print(time.process_time() - start, memory.peak() / 2**20)
"""


def many():
    """Return a board of 34 methods on 98 tasks with three seeds: 9,996 cells."""
    alphas, clients = [a / 20 for a in range(1, 15)], [5, 10, 20, 50, 100, 200, 500]
    grid = {
        "method": [{"algorithm": "fedprox", "algorithm.mu": (i + 1) / 1000} for i in range(34)],
        "task": [{"partition": "dirichlet", "partition.alpha": a, "clients": c} for a in alphas for c in clients],
        "seed": [0, 1, 2],
    }
    figure = Figure(where={"clients": 10, "algorithm.mu": [0.001, 0.002, 0.003]})
    return board(grid, tables=[Table(columns=("partition", "clients"))], figures=[figure])


def write(folder):
    draws, rounds = random.Random(0), list(range(1, 51))
    (folder / "records").mkdir()
    for i, planned in enumerate(plan(many().expand())):
        final = round(50 + 10 * draws.random() + i / 1000, 4)
        curve = {"round": rounds, "accuracy": [round(final * (1 - 0.9**r), 4) for r in rounds]}
        curve |= {"loss": [1.0] * 50, "train_loss": [1.0] * 50}
        made = record(planned, final, curve=curve)
        made["compute"] = made["compute"] | {"seconds_at_round": [r / 10 for r in rounds]}
        (folder / "records" / f"{planned.cell.key}.json").write_text(json.dumps(made, indent=1))


def test_ten_thousand_records(benchmark, store, tmp_path):
    write(tmp_path)

    def render():
        command = ["taskset", "-c", "0", sys.executable, "-c", RENDER, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    seconds, mebibytes = map(float, benchmark.pedantic(render, rounds=1))
    store(seconds, 60.0, against="60 s of one core", target="at most 1")
    benchmark.extra_info["mebibytes"] = mebibytes
    assert mebibytes < 2048
    assert len(list((tmp_path / "pages" / "runs").iterdir())) == 34 * 98
