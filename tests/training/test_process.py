"""The state of torch around a cell changes no bit, and is put back."""

import os

import pytest
import torch

from fedspan.benchmark.training.process import THREADS, limit_threads, restored, set_up_process
from tests.helpers import how, toy_cell, trained, weights
from tests.toys import NormNet

STATES = {  # how to read and to write each, and a value that cells must not have
    "default type": (torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled, False),
    "autocast": (
        lambda: torch.is_autocast_enabled("cpu"),
        lambda value: torch.set_autocast_enabled("cpu", value),
        True,
    ),
    "oneDNN": (
        lambda: torch.backends.mkldnn.enabled,
        lambda value: setattr(torch.backends.mkldnn, "enabled", value),
        False,
    ),
    "threads": (torch.get_num_threads, torch.set_num_threads, 2),
    "deterministic algorithms": (
        torch.are_deterministic_algorithms_enabled,
        lambda value: torch.use_deterministic_algorithms(value, warn_only=True),
        True,
    ),
    "search for fast kernels": (
        lambda: torch.backends.cudnn.benchmark,
        lambda value: setattr(torch.backends.cudnn, "benchmark", value),
        True,
    ),
}


@pytest.fixture
def plain():
    with restored():
        yield


def digest() -> str:
    set_up_process(how())
    return weights(trained(toy_cell(model=NormNet())))


@pytest.mark.parametrize("name", STATES)
def test_a_state_of_torch_changes_no_bit_and_is_put_back(plain, name):
    read, write, value = STATES[name]
    expected = digest()
    before = read()
    write(value)
    try:
        assert read() == value
        with restored():
            assert digest() == expected
            assert read() != value
        assert read() == value
    finally:
        write(before)


def test_cells_train_inside_inference_mode(plain):
    expected = digest()
    with torch.inference_mode(), restored():
        assert digest() == expected


def test_threads_of_processes_that_start_later_are_limited_only_inside(monkeypatch):
    monkeypatch.delenv(THREADS[0], raising=False)
    monkeypatch.setenv(THREADS[1], "3")
    with restored():
        limit_threads()
        assert [os.environ[name] for name in THREADS] == ["1", "3"]
    assert THREADS[0] not in os.environ
    assert os.environ[THREADS[1]] == "3"
