"""What portable numerics cost: the round of every model, computed portably and natively in turn."""

import statistics

import pytest

from fedspan.benchmark import numerics
from fedspan.benchmark.registry import plugins
from fedspan.benchmark.training.process import set_up_process
from fedspan.tasks.partitions.iid import IID
from tests.helpers import how, start, toy_cell
from tests.perf.test_methods import Noise

pytestmark = [
    pytest.mark.perf,
    pytest.mark.skipif(bool(numerics.missing_features()), reason=f"portable {numerics.missing_features()}"),
]

BATCH, STEPS = 32, 2
TARGET = 1.15  # of the geometric mean
MODELS = [name for name, cls in plugins("model").items() if cls.__module__.endswith(f"models.{name}")]
ratios: dict[str, float] = {}


def one_round(name, mode):
    """Prepare a round of two steps of 32 photographs' size, again and again from where the last one ended."""
    set_up_process(how())
    protocol = {"rounds": 10**6, "eval_every": 10**6, "local_epochs": 1, "batch_size": BATCH, "lr": 0.01}
    cell = toy_cell(
        dataset=Noise(images=STEPS * BATCH, size=32), partition=IID(), clients=1, model=plugins("model")[name](),
        protocol=protocol,
    )  # fmt: skip
    run = start(cell, numerics=mode)
    assert {good for _, good in numerics.instructions_in_use().values()} == {True} or mode == numerics.NATIVE
    return run.advance


@pytest.mark.parametrize("name", MODELS)
def test_a_portable_round(compare, aside, benchmark, name):
    portable, native = (aside(one_round, name, mode, numerics=mode) for mode in (numerics.PORTABLE, numerics.NATIVE))
    compare(portable, native, against="the same natively", target="see the mean of all models", repeats=7)
    ratios[name] = benchmark.extra_info["ratio"]


def test_a_portable_round_over_all_models(benchmark, store):
    if set(ratios) != set(MODELS):
        pytest.skip("not every model was measured in this run")
    mean = benchmark.pedantic(lambda: statistics.geometric_mean(ratios.values()), rounds=1)
    store(mean, 1.0, against="geometric mean over the models, native is 1", target=f"at most {TARGET}", unit="")
