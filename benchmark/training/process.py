"""The process that computes cells: device, numerics and threads."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from functools import cache

import torch

from fedspan.benchmark import numerics
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.spec.cell import Cell
from fedspan.benchmark.spec.settings import How

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # glibc's malloc.h


def set_up_process(how: How) -> None:
    """Set torch's threads, determinism and allocator in this process as every cell needs them.

    Raises `UserError`, with nothing set, if the device does not exist here.
    """
    device = device_of(how.device)
    torch.set_num_threads(how.threads)
    torch.set_flush_denormal(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = False  # TF32 would keep only 10 of the 23 mantissa bits of float32
    torch.backends.cuda.matmul.allow_tf32 = False
    if device.type == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # otherwise products on several streams may differ
    keep_freed_memory()


@cache
def keep_freed_memory() -> bool:
    """Make glibc serve large tensors from its heap and keep the heap; return whether it accepted.

    By default each large activation is mapped and unmapped, and the system zeroes its pages every time, which took a
    quarter of a MobileNetV2 step on one core. Results do not change. Does nothing on other systems.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return all(
        mallopt(option, value) for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 2**26))
    )


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Put back what `set_up_process` sets in torch, for a caller whose own computations go on in this process."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    threads, flushes = torch.get_num_threads(), _flushes_denormal()
    deterministic, tf32 = cudnn.deterministic, (cudnn.allow_tf32, matmul.allow_tf32)
    everywhere = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(flushes)
        cudnn.deterministic, (cudnn.allow_tf32, matmul.allow_tf32) = deterministic, tf32
        torch.use_deterministic_algorithms(everywhere[0], warn_only=everywhere[1])
        torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]


def _flushes_denormal() -> bool:
    return bool(torch.tensor([1e-40]).mul(1.0).view(torch.int32) == 0)  # torch tells it in no other way


def device_of(name: str) -> torch.device:
    """Return the device called `name`; raise `UserError` if it does not exist here."""
    try:
        device = torch.device(name)
        known = device.type == "cuda" or name == "cpu"
    except RuntimeError:
        known = False
    if not known:
        raise UserError(f"device={name} is not a device to train on; use cpu, cuda or cuda:0")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device={name}, but torch sees {torch.cuda.device_count()} CUDA devices; use device=cpu")
    return device


def numerics_of(cell: Cell, how: How) -> str:
    """Return a cell's numerics, portable or native; raise `UserError` if the requested ones are impossible."""
    return numerics.choose(how.numerics, how.device, cell.protocol.precision, how.threads)
