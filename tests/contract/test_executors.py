"""Executors differ in speed only: each equals `loop` for every registered method."""

import pytest
import torch
from torch import nn

from fedspan.benchmark.component import Component, Step
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.net import Net
from fedspan.benchmark.training.executors import EXECUTORS
from fedspan.benchmark.training.executors.graph import Graph
from fedspan.benchmark.training.executors.stacked_layers import ContiguousBatchNorm2d, PatchConv2d, stackable
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.methods.algorithms.fedbn import FedBN

from ..helpers import counted, start, toy_cell, trained
from ..toys import NormNet, toy
from .tape import Tapes
from .test_components import cell_of, every_net, every_stack


@pytest.fixture(autouse=True)
def graphs_on_cpu(monkeypatch):
    monkeypatch.setattr(Graph, "machine", Tapes)


OTHERS = [name for name in EXECUTORS if name != "loop"]
others = pytest.mark.parametrize("executor", OTHERS)


@every_net
@every_stack
def test_executors_give_the_numbers_of_loop(stack, model):
    cell = cell_of(stack, model=model, protocol={"local_epochs": 2, "precision": "float64"})
    reference = trained(cell)
    theirs = reference.state.pack()
    for executor in OTHERS:
        other = trained(cell, executor=executor)
        ours = other.state.pack()
        assert counted(reference) == counted(other), f"executor={executor} counts other work than loop"
        assert ours.keys() == theirs.keys(), f"executor={executor} keeps other trees than loop"
        for name, leaf in theirs.items():
            alike = torch.allclose(ours[name], leaf, rtol=1e-9, atol=1e-11)
            assert alike, f"executor={executor} gives another '{name}' than loop"
        for name in ("loss", "train_loss"):
            assert other.curve[name] == pytest.approx(reference.curve[name], rel=1e-9), executor


@others
def test_an_executor_keeps_the_local_models_that_diagnostics_ask_for(executor):
    runs = [start(toy_cell(protocol={"precision": "float64"}), executor=name) for name in ("loop", executor)]
    (_, reference), (_, other) = (run.executor.run(run.state, run.participants(), keep=[0, 2]) for run in runs)
    assert reference.keys() == other.keys() == {0, 2}
    for client, leaves in reference.items():
        for path, leaf in leaves.items():
            assert torch.allclose(other[client][path], leaf, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_executor_tells_of_each_client(executor):
    run, ticks = start(toy_cell(), executor=executor), []
    run.executor.run(run.state, run.participants(), tick=lambda: ticks.append(1))
    assert len(ticks) == len(run.participants()) > 1


@others
def test_a_client_alone_is_trained_as_in_loop(executor):
    reference, other = (
        trained(toy_cell(participation=0.1), executor=name).state.digest() for name in ("loop", executor)
    )
    assert other == reference


@others
def test_repeated_runs_of_an_executor_are_equal_bit_for_bit(executor):
    first, second = (trained(toy_cell(), executor=executor).state.pack() for _ in range(2))
    assert all(torch.equal(leaf, second[name]) for name, leaf in first.items())


@toy("addon", "toy_lookahead")
class Lookahead(Component):
    """Toy: asks for a gradient at other weights inside its penalty."""

    def penalty(self, step: Step) -> torch.Tensor:
        return sum(grad.square().sum() for grad in step.grad_at(step.start).values())


@toy("algorithm", "toy_ending")
class Ending(Component):
    """Toy: the loss grows with the step, and the client sends a gradient of it after its last one."""

    def loss(self, step: Step) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(step.logits, step.y) * (1 + step.number)

    def client_end(self, delta, local):
        gradient = local.grad_at(local.params)
        return {path: leaf - gradient[path] for path, leaf in delta.items()}, {}, {}


@others
def test_after_the_last_step_all_executors_have_taken_as_many(executor):
    cell = toy_cell(Ending(), protocol={"precision": "float64", "rounds": 1})
    reference, other = (trained(cell, executor=name).state.params for name in ("loop", executor))
    for path, leaf in reference.items():
        assert torch.allclose(other[path], leaf, rtol=1e-9, atol=1e-11)


@toy("algorithm", "toy_one_epoch")
class OneEpoch(Component):
    """Trains for one local epoch, whatever the protocol says."""

    def phases(self, epochs):
        return [(1, lambda path: True)]


@toy("addon", "toy_near_start")
class NearStart(Component):
    """Keeps features near those of the model that the client started with, under its statistics."""

    def penalty(self, step):
        return (step.features - step.apply(step.start)[0]).square().mean()


@toy("addon", "toy_share_of_images")
class ShareOfImages(Component):
    """Shrinks features the less the more images a client holds, relative to the mean client."""

    def penalty(self, step):
        return step.features.square().mean() * step.mean_images / step.counts.sum()


@others
@pytest.mark.parametrize(
    "stack",
    [(OneEpoch(),), (FedBN(), NearStart()), (FedAvg(), ShareOfImages())],
    ids=["one epoch", "own statistics", "share of images"],
)
def test_an_executor_follows_phases_and_statistics_that_stay_with_clients(executor, stack):
    cell = toy_cell(*stack, model=NormNet(), protocol={"rounds": 2, "local_epochs": 3, "precision": "float64"})
    loop, other = trained(cell), trained(cell, executor=executor)
    assert counted(loop) == counted(other)
    theirs = other.state.pack()
    for name, leaf in loop.state.pack().items():
        assert torch.allclose(theirs[name], leaf, rtol=1e-9, atol=1e-11), name


def test_what_cannot_be_stacked_is_refused_by_name():
    with pytest.raises(UserError, match="executor=loop"):
        trained(toy_cell(FedAvg(), Lookahead()), executor="vmap")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), (5, 2, 0), (1, 1, 0), ((3, 2), (2, 1), (0, 1))])
def test_a_convolution_over_patches_is_a_convolution(kernel, stride, padding, bias):
    conv = nn.Conv2d(3, 4, kernel, stride, padding, bias=bias).double()
    x = torch.randn(2, 3, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    results = []
    for kind in (nn.Conv2d, PatchConv2d):
        conv.__class__ = kind
        y = conv(x)
        results.append([y, *torch.autograd.grad(y.sin().sum(), [x, *conv.parameters()])])
    for exact, ours in zip(*results, strict=True):
        assert torch.allclose(exact, ours, rtol=1e-12, atol=1e-12)


def test_only_plain_convolutions_become_products_of_patches():
    plain = nn.Conv2d(4, 4, 3)
    others = (
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
    )
    assert PatchConv2d.can_be(plain)
    assert not any(PatchConv2d.can_be(conv) for conv in others)


@pytest.mark.parametrize(("device", "kind"), [("cpu", nn.BatchNorm2d), ("meta", ContiguousBatchNorm2d)])
def test_batch_norm_sees_contiguous_images_where_cudnn_computes_it(device, kind):
    net = stackable(Net(nn.BatchNorm2d(2), nn.Linear(1, 1)), torch.device(device))
    assert type(net.body) is kind


def test_contiguous_batch_norm_changes_the_order_of_memory_alone(monkeypatch):
    x = torch.randn(3, 4, 5, 5, generator=torch.Generator().manual_seed(0)).to(memory_format=torch.channels_last)
    assert torch.allclose(ContiguousBatchNorm2d(4)(x), nn.BatchNorm2d(4)(x))
    monkeypatch.setattr(nn.BatchNorm2d, "forward", lambda norm, images: images)
    assert ContiguousBatchNorm2d(4)(x).is_contiguous()
