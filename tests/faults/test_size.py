"""What must not grow: memory with the number of clients, and the driver's with the number of cells."""

import subprocess
import sys

import pytest

from tests.cli.conftest import QUICK, ROOT, here  # noqa: F401

pytestmark = pytest.mark.slow

CLIENTS = """
    import sys, tempfile
    from pathlib import Path
    import numpy as np
    import torch
    from tests import memory
    from fedspan.benchmark.running.cell_run import run_cell
    from fedspan.benchmark.task import Partition
    from tests.helpers import how, toy_cell
    from tests.toys import Blobs, toy

    @toy("partition", "equal")
    class Equal(Partition):
        def split(self, labels, classes, clients, rng):
            return np.array_split(rng.permutation(len(labels)), clients)

    clients = int(sys.argv[1])
    parts = {"dataset": Blobs(train=60_000), "partition": Equal(), "clients": clients, "participation": 100 / clients}
    cell = toy_cell(**parts, protocol={"rounds": 5, "local_epochs": 1})
    with tempfile.TemporaryDirectory() as folder:
        record = run_cell(cell, how(Path(folder)))
    assert record["status"] == "done"
    print(memory.peak())
"""

CELLS = """
    import resource, sys
    from fedspan.benchmark.cli.main import main

    def memory():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    assert main([*sys.argv[2:], "seed=range(1000,1050)"]) == 0
    before = memory()
    assert main([*sys.argv[2:], f"seed=range(0,{sys.argv[1]})"]) == 0
    print("grown", memory() - before)
"""


def said(program, *words, cwd):
    program = "\n".join(line.removeprefix("    ") for line in program.splitlines())
    command = [sys.executable, "-c", program, *map(str, words)]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HOME": str(cwd)}
    ran = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return int(ran.stdout.split()[-1])


def test_10000_clients_of_6_images_at_one_percent_take_the_memory_of_100(tmp_path):
    """The 60,000 images are the same ones."""
    few, many = (said(CLIENTS, clients, cwd=tmp_path) for clients in (1_000, 10_000))
    assert many < few + 16 * 2**20


def test_the_driver_keeps_nothing_of_a_finished_cell(here):  # noqa: F811
    grown = said(CELLS, 500, "run", "-m", *QUICK, "workers=1", cwd=here)
    assert grown < 500 * 64 * 1024
