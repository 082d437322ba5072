import pytest
import torch

from fedspan.benchmark.running.cell_run import run_cell
from fedspan.benchmark.training import meter as meter_module
from fedspan.benchmark.training.meter import Meter
from tests.helpers import how, start, toy_cell, trained
from tests.toys import LocalHead, LocalNorm, NormNet, PlainNet, Scaffold, Sharpness, Sphere


def forward_flops(n):
    """NormNet on 6x6 images with 2 channels: a convolution to 4 maps of 4x4, a head from 16 to 3."""
    return 2 * n * (4 * 4 * 4 * 2 * 9 + 16 * 3)


def backward_flops(n):
    """As much again for the weights, and for the head's input; nobody needs the gradient of the images."""
    return forward_flops(n) + 2 * n * 16 * 3


def test_flops_are_those_counted_by_hand():
    run = trained(toy_cell(model=NormNet()))
    images = 3 * 2 * 94
    assert run.meter.flops["train"] == forward_flops(images) + backward_flops(images)
    assert run.meter.flops["evaluate"] == 3 * forward_flops(30)


@pytest.mark.slow  # torch's counter imports a compiler
def test_flops_follow_torchs_counter():
    from torch.utils.flop_counter import FlopCounterMode

    run = start(toy_cell(model=NormNet()))
    net, (x, y) = run.trainer.net, next(run.trainer.data.epoch(5, 0, 0))
    with FlopCounterMode(display=False) as theirs:
        torch.nn.functional.cross_entropy(net(x)[1], y).backward()
    ours = Meter()
    with ours.step("train", "one"):
        torch.nn.functional.cross_entropy(net(x)[1], y).backward()
    assert ours.flops["train"] == theirs.get_total_flops()


def test_the_first_step_of_a_kind_counts_for_all():
    meter, a = Meter(), torch.ones(2, 3)
    for size in (4, 4, 5, 4):
        with meter.step("train", str(size)):
            torch.mm(a, torch.ones(3, size))
    assert meter.flops == {"train": 2 * 2 * 3 * (3 * 4 + 5)}


def test_a_second_gradient_costs_as_much_as_the_first():
    plain, twice = (trained(toy_cell(None, *addons)).meter.flops["train"] for addons in ((), (Sharpness(),)))
    assert twice == 2 * plain


def test_a_frozen_head_costs_less():
    """Without a head's weight gradient: 2 * 5 * 3 per image."""
    free, frozen = (trained(toy_cell(None, *addons)).meter.flops["train"] for addons in ((), (Sphere(),)))
    assert free - frozen == 2 * 3 * 94 * 2 * 5 * 3


def test_phases_cost_what_moves():
    """An epoch of the head alone has no backward pass through the body."""
    run = trained(toy_cell(LocalHead(), protocol={"rounds": 1, "local_epochs": 1}))
    body, head = 2 * 72 * 5, 2 * 5 * 3
    assert run.meter.flops["train"] == 94 * ((body + head) + head + (body + head) + body + head)


def test_processor_seconds_leave_out_what_a_run_waits_for(monkeypatch):
    wall, busy = iter((0.0, 10.0, 40.0, 50.0)), iter((0.0, 9.0, 11.0, 20.0))
    monkeypatch.setattr("time.perf_counter", lambda: next(wall))
    monkeypatch.setattr("time.process_time", lambda: next(busy))
    meter = Meter()
    with meter.phase("local"), meter.phase("evaluate"):
        pass
    assert meter.seconds == {"local": 20.0, "evaluate": 30.0}
    assert meter.as_dict()["processor_seconds"] == 20.0


PLAIN = 4 * ((72 + 1) * 5 + (5 + 1) * 3)
NORM = 4 * ((18 + 1) * 4 + 4 + 4 + (16 + 1) * 3)
BUFFERS = 4 * (4 + 4)


@pytest.mark.parametrize(
    ("stack", "model", "down", "up"),
    [
        ((), PlainNet(), PLAIN, PLAIN),
        ((), NormNet(), NORM + BUFFERS, NORM + BUFFERS),
        ((LocalNorm(),), NormNet(), NORM - 8 * 4, NORM - 8 * 4),
        ((Scaffold(),), PlainNet(), 2 * PLAIN, 2 * PLAIN),
        ((None, Sphere()), PlainNet(), (73 * 5) * 4, (73 * 5) * 4),
        ((LocalHead(),), PlainNet(), (73 * 5) * 4, (73 * 5) * 4),
    ],
    ids=["plain", "buffers", "own BatchNorm", "state both ways", "frozen head", "own head"],
)
def test_bytes_per_client_and_round_are_those_counted_by_hand(stack, model, down, up):
    run = trained(toy_cell(*stack, model=model, participation=0.5))
    counted = run.meter.as_dict()["bytes"]
    assert (counted["down_per_client_round"], counted["up_per_client_round"]) == (down, up)
    assert (counted["down"], counted["up"]) == (down * 3 * 3, up * 3 * 3)


def test_double_precision_doubles_the_bytes():
    run = trained(toy_cell(protocol={"precision": "float64", "rounds": 1}))
    assert run.meter.bytes_up == 6 * 2 * PLAIN


def test_steps_and_images_are_counted():
    run = trained(toy_cell(protocol={"last_batch": "drop"}))
    sizes = [run.trainer.data.size(client) for client in range(6)]
    seen = [n // 8 * 8 or n for n in sizes]
    assert run.meter.images == 3 * 2 * sum(seen)
    assert run.meter.steps == 3 * 2 * sum(max(n // 8, 1) for n in sizes)


def memory_of(work):
    meter = Meter()
    with meter.step("train", "one"):
        work()
    return meter.memory["train"]


def test_memory_is_the_most_bytes_that_tensors_took_at_once():
    x = torch.ones(1000)  # found there: 4,000 bytes
    assert memory_of(lambda: x.view(10, 100).t()) == 4000, "a view takes none"
    assert memory_of(lambda: (x + 1, x + 2)) == 4000 + 2 * 4000
    assert memory_of(lambda: [None for _ in range(5) if (x + 1).sum() < 0]) == 4000 + 4000 + 4, "one after another"


def test_memory_counts_what_autograd_keeps():
    x = torch.ones(1000, requires_grad=True)

    def work(layers):
        y = x
        for _ in range(layers):
            y = y.exp()
        return y

    assert memory_of(lambda: work(1)) == 4000 * 2
    assert memory_of(lambda: work(5)) == 4000 * 6
    assert memory_of(lambda: work(5).sum()) == 4000 * 6 + 4


def test_the_memory_of_steps_is_that_of_the_one_that_took_most():
    meter = Meter()
    for count in (1000, 3000, 2000):
        with meter.step("train", str(count)):
            torch.ones(count)
    assert meter.memory == {"train": 4 * 3000}


def test_the_memory_of_a_step_is_weights_gradients_momentum_and_activations_at_least():
    run = trained(toy_cell(protocol={"rounds": 1, "batch_size": 94}))
    images = run.trainer.data.size(5)
    weights, activations = PLAIN, 4 * images * (72 + 5 + 3)
    assert 3 * weights + activations <= run.meter.memory["train"] <= 3 * weights + 3 * activations


def test_the_memory_of_a_cell_is_the_same_whatever_the_process_did_before(tmp_path):
    small, large = toy_cell(protocol={"rounds": 1}), toy_cell(model=PlainNet(width=20_000), protocol={"rounds": 1})
    first, other, again = (
        run_cell(cell, how(tmp_path / name))["compute"]
        for name, cell in (("first", small), ("other", large), ("again", small))
    )
    assert first["memory_bytes"] == again["memory_bytes"]
    assert other["memory_bytes"]["train"] > 3 * 4 * 20_000 * 75
    assert "peak_memory_bytes" not in first, "on CPU that would be the process's"


def test_memory_needs_no_more_steps_to_watch_than_flops(monkeypatch):
    """Each kind of step is watched once; the others run as they are."""
    meter, entered = Meter(), []
    enter = meter_module.OperationCounter.__enter__
    monkeypatch.setattr(meter_module.OperationCounter, "__enter__", lambda mode: entered.append(mode) or enter(mode))
    for _ in range(3):
        with meter.step("train", "one"):
            torch.ones(3) + 1
    assert len(entered) == 1
