"""The process that computes cells: device, numerics and threads."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch

from fedspan.benchmark import numerics
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.spec.cell import Cell
from fedspan.benchmark.spec.settings import How

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # glibc's malloc.h
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"

# How to read and to write a state of torch that can change bits.
Switch = tuple[Callable[[], Any], Callable[[Any], object]]


def _flushes_denormal() -> bool:
    tiny = torch.tensor([1e-40], dtype=torch.float32, device="cpu")
    return int(tiny.mul(1.0).view(torch.int32)) == 0  # torch has no function to ask


def _attribute(owner: object, name: str) -> Switch:
    return partial(getattr, owner, name), partial(setattr, owner, name)


def _autocast(kind: str) -> Switch:
    return partial(torch.is_autocast_enabled, kind), partial(torch.set_autocast_enabled, kind)


# States of torch with the value that cells need; a program around them, or a plugin before them, may have set others.
NEEDED: tuple[tuple[Switch, Any], ...] = (
    ((_flushes_denormal, torch.set_flush_denormal), True),
    ((torch.get_default_dtype, torch.set_default_dtype), torch.float32),
    ((torch.is_grad_enabled, torch.set_grad_enabled), True),
    (_autocast("cpu"), False),
    (_autocast("cuda"), False),
    (_attribute(torch.backends.mkldnn, "enabled"), True),
    (_attribute(torch.backends.cudnn, "deterministic"), True),
    (_attribute(torch.backends.cudnn, "benchmark"), False),
    (_attribute(torch.backends.cudnn, "allow_tf32"), False),  # TF32 keeps only 10 of the 23 mantissa bits of float32
    (_attribute(torch.backends.cuda.matmul, "allow_tf32"), False),
    (_attribute(torch.utils.deterministic, "fill_uninitialized_memory"), False),
)


def set_up_process(how: How) -> None:
    """Set torch's state, threads and allocator in this process as every cell needs them.

    Raises `UserError`, with nothing set, if the device does not exist here.
    """
    device = device_of(how.device)
    torch.set_num_threads(how.threads)
    for (_, write), value in NEEDED:
        write(value)
    on_gpu = device.type == "cuda"
    _set_deterministic(on_gpu, warn_only=on_gpu)
    os.environ.setdefault(WORKSPACE, ":4096:8")  # otherwise products on several streams may differ
    keep_freed_memory()


def _set_deterministic(on: bool, warn_only: bool) -> None:
    """Set whether torch uses deterministic algorithms, and whether it only warns of others.

    Torch imports its compiler for that, which takes a second; so it is not asked where nothing changes.
    """
    if (on, warn_only) != _deterministic():
        torch.use_deterministic_algorithms(on, warn_only=warn_only)


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def limit_threads() -> None:
    """Limit processes started from now on to one thread each, unless the environment sets a number."""
    for name in THREADS:
        os.environ.setdefault(name, "1")


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
    """Undo `set_up_process` and `limit_threads` after the block, for a caller that goes on computing here."""
    threads = torch.get_num_threads()
    everywhere = _deterministic()
    before = [(write, _value(read)) for (read, write), _ in NEEDED]
    added = [name for name in (*THREADS, WORKSPACE) if name not in os.environ]
    try:
        with torch.inference_mode(False):
            yield
    finally:
        torch.set_num_threads(threads)
        _set_deterministic(*everywhere)
        for write, value in before:
            if value is not None:
                write(value)
        for name in added:
            os.environ.pop(name, None)


def _value(read: Callable[[], Any]) -> Any:
    """Return a state, None if torch refuses to tell: it does after a mix of its old and new names for TF32."""
    try:
        return read()
    except RuntimeError:
        return None


def ran_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory of the machine or of the device is used up.

    CUDA's libraries and the recording of graphs report that as plain `RuntimeError`.
    """
    kinds, words = (MemoryError, torch.OutOfMemoryError), ("DefaultCPUAllocator", "out of memory", "ALLOC_FAILED")
    return isinstance(error, kinds) or (isinstance(error, RuntimeError) and any(word in str(error) for word in words))


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
