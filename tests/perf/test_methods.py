"""What each method of the papers costs in a round, against FedAvg: MobileNetV2, 32x32 images, batches of 64."""

import time

import pytest

from fedspan.benchmark.training.process import set_up_process
from fedspan.methods.addons.feddecorr import FedDecorr
from fedspan.methods.addons.spherefed import SphereFed
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.methods.algorithms.fedavgm import FedAvgM
from fedspan.methods.algorithms.fednova import FedNova
from fedspan.methods.algorithms.fedprox import FedProx
from fedspan.methods.algorithms.moon import Moon
from fedspan.methods.algorithms.scaffold import Scaffold
from fedspan.tasks.models.mobilenet_v2 import MobileNetV2
from fedspan.tasks.partitions.iid import IID
from tests.helpers import how, start, toy_cell
from tests.methods.test_memory import Noise

pytestmark = pytest.mark.perf

CLIENTS, STEPS, BATCH = 1, 2, 64  # few steps: what a method does once per client and round weighs more than in a paper


def rounds_of(algorithm, *addons):
    """Return a function that advances a run by one round and says how long the processor worked on it."""
    protocol = {"rounds": 10**6, "eval_every": 10**6, "local_epochs": 1, "batch_size": BATCH, "lr": 0.01}
    cell = toy_cell(
        algorithm, *addons, dataset=Noise(images=CLIENTS * STEPS * BATCH, size=32), partition=IID(), clients=CLIENTS,
        model=MobileNetV2(), protocol=protocol,
    )  # fmt: skip
    run = start(cell)

    def one_round():
        before = time.process_time()  # does not count what other processes take
        run.advance()
        return time.process_time() - before

    return one_round


@pytest.mark.parametrize(
    ("method", "target"),
    [
        pytest.param((FedAvg(), FedDecorr()), 1.05, id="feddecorr"),
        pytest.param((FedAvg(), SphereFed()), 1.02, id="spherefed"),
        pytest.param((FedProx(),), 1.10, id="fedprox"),
        pytest.param((FedAvgM(),), 1.10, id="fedavgm"),
        pytest.param((FedNova(),), 1.10, id="fednova"),
        pytest.param((Scaffold(),), 1.10, id="scaffold"),
        pytest.param((Moon(),), 1.75, id="moon"),
        pytest.param((Moon(projection=()),), 1.75, id="moon-without-head"),
    ],
)
def test_a_round(compare, method, target):
    set_up_process(how())
    compare(rounds_of(*method), rounds_of(FedAvg()), against="FedAvg", target=f"at most {target:.2f}", repeats=9)
