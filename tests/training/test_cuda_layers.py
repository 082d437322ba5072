"""What a net on a GPU has in place of torch's own layers, as far as a processor can tell."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedspan.benchmark.data.batches import memory_format
from fedspan.benchmark.net import Net
from fedspan.benchmark.training import cuda_layers
from fedspan.benchmark.training.layout import lay_out
from fedspan.benchmark.training.process import set_up_process
from tests.helpers import how

CPU, CUDA, META = (torch.device(name) for name in ("cpu", "cuda", "meta"))
SIZES = [((7, 7), 6), ((7, 5), (3, 2)), ((1, 1), 6), ((8, 4), 4), ((6, 6), 6), ((5, 9), (None, 4)), ((4, 10), 7)]


@pytest.mark.parametrize(("pixels", "size"), SIZES, ids=str)
def test_pooling_gives_torchs_means_and_gradients(pixels, size):
    x = torch.randn(3, 2, *pixels, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weigh = torch.randn(F.adaptive_avg_pool2d(x, size).shape, dtype=torch.float64)
    found = []
    for pool in (cuda_layers.AdaptiveAvgPool2d(size), nn.AdaptiveAvgPool2d(size)):
        y = pool(x)
        found.append((y, *torch.autograd.grad((y * weigh).sum(), x)))
    assert all(torch.allclose(ours, theirs, rtol=1e-12, atol=1e-14) for ours, theirs in zip(*found, strict=True))


@pytest.mark.parametrize(("device", "kind"), [(CPU, nn.AdaptiveAvgPool2d), (META, cuda_layers.AdaptiveAvgPool2d)])
def test_pooling_is_mended_where_its_gradient_has_no_order(device, kind):
    net = lay_out(Net(nn.AdaptiveAvgPool2d(6), nn.Linear(1, 1)), device, torch.contiguous_format)
    assert type(net.body) is kind


@pytest.mark.parametrize(
    ("device", "precision", "format"),
    [
        (CPU, "float32", torch.channels_last),
        (CPU, "bf16", torch.channels_last),
        (CUDA, "float32", torch.contiguous_format),
        (CUDA, "bf16", torch.channels_last),
    ],
)
def test_images_lie_in_memory_as_their_device_is_fastest(device, precision, format):
    assert memory_format(device, precision) is format


def test_a_process_that_trains_on_a_gpu_repeats_its_sums_and_rounds_as_float32(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert not torch.are_deterministic_algorithms_enabled()
    try:
        set_up_process(how(device="cuda:0"))
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()  # an operation without an order still computes
        assert not torch.backends.cudnn.allow_tf32
        assert torch.backends.cudnn.deterministic
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_process_that_trains_on_cpu_keeps_torchs_own_choice():
    set_up_process(how())
    assert not torch.are_deterministic_algorithms_enabled()


def test_float32_is_never_tf32():
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    set_up_process(how())
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
