"""layout: another format in memory, the same function, no less accurate."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedspan.benchmark.net import Net
from fedspan.benchmark.spec.compose import make_cell, resolve
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.training.cpu_layers import BatchNorm2d, Rounded, moments
from fedspan.benchmark.training.layout import lay_out
from fedspan.benchmark.training.run import Run
from fedspan.benchmark.training.saving import resume, save
from fedspan.tasks.models.mobilenet_v2 import MobileNetV2

CPU = torch.device("cpu")
LAST = torch.channels_last


def images(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)) * 2 + 1


def gradient(net, x, y):
    net.train()
    F.cross_entropy(net(x)[1], y).backward()
    return torch.cat([leaf.grad.double().flatten() for leaf in net.parameters()])


def test_a_deep_nets_gradient_stays_as_close_to_float64_as_in_the_default_format():
    torch.manual_seed(0)
    net, x, y = MobileNetV2().build((3, 32, 32), 10), images(32, 3, 32, 32), torch.arange(32) % 10
    exact = gradient(copy.deepcopy(net).double(), x.double(), y)
    distance = (gradient(copy.deepcopy(net), x, y) - exact).norm()
    ours = gradient(lay_out(copy.deepcopy(net), CPU, LAST), x.contiguous(memory_format=LAST), y)
    assert (ours - exact).norm() <= 2 * distance


@pytest.mark.parametrize("shape", [(64, 16, 32, 32), (3, 5, 7, 9), (1, 4, 2, 1), (64, 8, 1, 1)])
def test_moments_are_those_of_float64(shape):
    x = images(*shape).contiguous(memory_format=LAST)
    mean, var = moments(x)
    exact = x.double()
    assert torch.allclose(mean, exact.mean((0, 2, 3)), rtol=0, atol=5e-7)
    assert torch.allclose(var, exact.var((0, 2, 3), unbiased=False), rtol=5e-7, atol=0)


@pytest.mark.parametrize("shape", [(64, 16, 16, 16), (64, 16, 2, 2)])
def test_moments_of_bfloat16_numbers_are_summed_in_float32(shape):
    x = images(*shape).bfloat16().contiguous(memory_format=LAST)
    mean, var = moments(x)
    exact = x.double()
    assert torch.allclose(mean, exact.mean((0, 2, 3)), rtol=0, atol=1e-6)
    assert torch.allclose(var, exact.var((0, 2, 3), unbiased=False), rtol=1e-5, atol=0)


@pytest.mark.parametrize("batch", [1, 5, 64])
def test_batch_norm_is_torchs_to_rounding(batch):
    x = images(batch, 6, 4, 4)
    theirs, ours = nn.BatchNorm2d(6).double(), lay_out(Net(nn.BatchNorm2d(6), nn.Linear(1, 1)), CPU, LAST).body
    assert type(ours) is BatchNorm2d
    outcomes = []
    for norm, inputs in ((theirs, x.double()), (ours, x.contiguous(memory_format=LAST))):
        with torch.no_grad():
            norm.weight.copy_(torch.linspace(0.5, 2, 6))
            norm.bias.copy_(torch.linspace(-1, 1, 6))
        inputs.requires_grad_()
        trained = [norm(inputs), norm(inputs * 2)]
        (trained[0].pow(3).sum() + trained[1].sin().sum()).backward()
        outcomes.append([
                *trained, inputs.grad, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var,
                norm.num_batches_tracked, norm.eval()(inputs),
        ])  # fmt: skip
    for exact, result in zip(*outcomes, strict=True):
        assert torch.allclose(result.double(), exact.double(), rtol=1e-5, atol=1e-4)


def test_one_pixel_cannot_be_normalised():
    norm = lay_out(Net(nn.BatchNorm2d(3), nn.Linear(1, 1)), CPU, LAST).body
    with pytest.raises(ValueError, match="more than one value per channel"):
        norm(images(1, 3, 1, 1).contiguous(memory_format=LAST))


def both_passes(layer, x):
    """Return output and gradients of `layer` on a copy of x: [y, dx, dweight, dbias]."""
    x = x.detach().clone().requires_grad_()
    y = layer(x)
    (y.to(layer.weight.dtype) * (torch.arange(y.numel()).view_as(y) % 251 - 3)).sum().backward()  # exact in bfloat16
    return [y, x.grad, layer.weight.grad, layer.bias.grad]


LAYERS = {
    "conv": (lambda: nn.Conv2d(8, 6, 3, padding=1), (4, 8, 6, 6)),
    "strided-grouped-conv": (lambda: nn.Conv2d(8, 8, 3, 2, 1, groups=8), (4, 8, 8, 8)),
    "linear": (lambda: nn.Linear(40, 7), (5, 40)),
}


def layer_and_shape(name):
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    return make(), shape


@pytest.mark.parametrize("has", [True, False], ids=["with-bfloat16-arithmetic", "without"])
@pytest.mark.parametrize("name", LAYERS)
def test_only_a_layer_whose_bfloat16_is_slow_is_replaced(monkeypatch, name, has):
    layer, _ = layer_and_shape(name)
    monkeypatch.setattr("fedspan.benchmark.training.cpu_layers.has_bfloat16", lambda: has)
    ours = lay_out(Net(copy.deepcopy(layer), nn.Linear(1, 1)), CPU, LAST).body
    assert isinstance(ours, Rounded) == (name.startswith("strided") or not has)
    assert isinstance(ours, type(layer))


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_rounds_to_bfloat16_what_it_reads_and_returns_and_nothing_else(monkeypatch, name):
    layer, shape = layer_and_shape(name)
    monkeypatch.setattr("fedspan.benchmark.training.cpu_layers.has_bfloat16", lambda: False)
    ours = lay_out(Net(copy.deepcopy(layer), nn.Linear(1, 1)), CPU, LAST).body
    x, exact = images(*shape).bfloat16(), copy.deepcopy(layer).double()
    with torch.no_grad():
        exact.weight.copy_(layer.weight.bfloat16())
        exact.bias.copy_(layer.bias.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        mine = both_passes(ours, x)
    assert [part.dtype for part in mine] == [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]
    for part, reference in zip(mine, both_passes(exact, x.double()), strict=True):
        assert torch.equal(part.float(), part.bfloat16().float())
        assert (part.double() - reference).abs().max() <= 1.01 * 2**-8 * reference.abs().max()


@pytest.mark.parametrize("name", LAYERS)
def test_without_autocast_a_layer_computes_in_float32(monkeypatch, name):
    layer, shape = layer_and_shape(name)
    monkeypatch.setattr("fedspan.benchmark.training.cpu_layers.has_bfloat16", lambda: False)
    x = images(*shape)
    y = lay_out(Net(copy.deepcopy(layer), nn.Linear(1, 1)), CPU, LAST).body(x)
    torch.testing.assert_close(y, layer(x))
    assert not torch.equal(y, y.bfloat16().float())


def test_a_net_under_bfloat16_hands_on_channels_last(monkeypatch):
    monkeypatch.setattr("fedspan.benchmark.training.cpu_layers.has_bfloat16", lambda: False)
    body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, 2, 1, groups=8))
    ours = lay_out(Net(body, nn.Linear(1, 1)), CPU, LAST).body
    x = images(4, 3, 8, 8).contiguous(memory_format=LAST).bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = ours(x)
    y.float().sum().backward()
    assert y.is_contiguous(memory_format=LAST)
    assert x.grad.is_contiguous(memory_format=LAST)


def order(leaf):
    """Return how far apart neighbours lie in memory, along the axes that have any."""
    return [stride for stride, size in zip(leaf.stride(), leaf.shape, strict=True) if size > 1]


def test_weights_keep_their_layout_through_a_checkpoint(tmp_path):
    cell = make_cell(resolve({"algorithm": "scaffold", "clients": 2, "partition": "iid", "dataset.limit": 64}))
    before, after = (Run(cell, How(results=tmp_path, data=tmp_path)) for _ in range(2))
    before.advance()
    save(before, tmp_path / "state")
    assert resume(after, tmp_path / "state")
    packed = before.state.pack()
    assert any(not leaf.is_contiguous() for leaf in packed.values())
    for name, leaf in after.state.pack().items():
        assert torch.equal(leaf, packed[name]), name
        assert order(leaf) == order(packed[name]), name
