"""What holds on a CUDA device: executors give loop's numbers, repeated runs the same bits, memory ends gently."""

import numpy as np
import pytest
import torch

from fedspan.benchmark.registry import plugins
from fedspan.benchmark.task import Data, Dataset, Images, content_digest
from fedspan.benchmark.training.executors import EXECUTORS, graph
from fedspan.benchmark.training.process import set_up_process
from tests.contract.test_components import cell_of, every_net, every_stack
from tests.helpers import counted, how, start, toy_cell, trained
from tests.toys import CLASSES, NormNet, toy
from tests.training import test_actors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
LONG = {"rounds": 5, "local_epochs": 3}


@pytest.fixture(autouse=True)
def settled():
    """Put the process into the state in which cells compute on a device."""
    set_up_process(how(device="cuda"))
    yield
    torch.use_deterministic_algorithms(False)


def assert_repeated(cell, executor):
    first, second = (trained(cell, executor=executor, device="cuda").state.pack() for _ in range(2))
    assert [name for name, leaf in first.items() if not torch.equal(leaf, second[name])] == []


others = pytest.mark.parametrize("executor", [name for name in EXECUTORS if name != "loop"])


@others
@every_net
@every_stack
def test_an_executor_gives_the_numbers_of_loop(stack, model, executor):
    cell = cell_of(stack, model=model)
    reference, other = (trained(cell, executor=name, device="cuda") for name in ("loop", executor))
    assert counted(reference) == counted(other)
    theirs = reference.state.pack()
    for name, leaf in other.state.pack().items():
        assert torch.allclose(leaf, theirs[name], rtol=1e-3, atol=1e-5), name


def test_the_device_gives_the_numbers_of_the_processor():
    there, here = (trained(toy_cell(model=NormNet()), device=device).state.params for device in ("cuda", "cpu"))
    for path, leaf in here.items():
        assert torch.allclose(leaf, there[path].cpu(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_repeated_runs_are_equal_bit_for_bit(executor, precision):
    cell = toy_cell(model=NormNet(), protocol={**LONG, "precision": precision})
    assert_repeated(cell, executor)


@toy("dataset", "photographs")
class Photographs(Dataset):
    """Random images, as large as those of the nets' own datasets."""

    pixels: int = 32

    def load(self, cache):
        rng = np.random.default_rng(0)

        def images(n):
            x = torch.from_numpy(rng.integers(0, 256, (n, self.pixels, self.pixels, 3), dtype=np.uint8))
            return Images(x, torch.arange(n) % CLASSES)

        train, test = images(96), images(12)
        return Data(train, test, ("a", "b", "c"), (0.5,) * 3, (0.25,) * 3, content_digest(train.x, test.x))


@pytest.mark.parametrize("name", plugins("model"))
@pytest.mark.parametrize("executor", ["loop", "graph"])
@pytest.mark.filterwarnings("error:.*deterministic.*")
def test_every_model_repeats_its_bits(name, executor):
    pixels = 256 if name == "alexnet_bn" else 32
    cell = toy_cell(
        model=plugins("model")[name](),
        dataset=Photographs(pixels=pixels),
        partition=plugins("partition")["iid"](),
        clients=2,
        protocol={**LONG, "lr": 1e-3},
    )
    assert_repeated(cell, executor)


@every_net
@every_stack
def test_every_method_repeats_its_bits(stack, model):
    assert_repeated(cell_of(stack, model=model), "loop")


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_worker_with_a_gpu_gives_the_bits_of_its_driver(executor):
    test_actors.agree(test_actors.begun("moon", executor=executor, device="cuda"))


def test_recorded_steps_are_replayed_in_lanes():
    run = start(toy_cell(model=NormNet(), protocol=LONG), executor="graph", device="cuda")
    run.executor.width.now, run.executor.width.settled = 3, True
    while not run.finished:
        run.advance()
    replays = [recording.replay for lane in run.executor.lanes for recording in lane.recordings.values()]
    assert len(run.executor.lanes) == 3
    assert sum(replay is not None for replay in replays) >= 3


def test_a_full_device_takes_fewer_lanes_and_goes_on(monkeypatch):
    class Small(graph.Cuda):
        def record(self, work, queue):
            if len(seen) > 2 and queue is seen[-1]:
                raise torch.OutOfMemoryError("no room")
            return super().record(work, queue)

        def queue(self):
            seen.append(super().queue())
            return seen[-1]

    seen = []
    monkeypatch.setattr(graph.Graph, "machine", Small)
    run = start(toy_cell(protocol=LONG), executor="graph", device="cuda")
    run.executor.width.now, run.executor.width.settled = 4, True
    while not run.finished:
        run.advance()
    assert run.executor.width.now == 2
