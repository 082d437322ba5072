"""The process that computes cells: device, numerics and threads."""

from __future__ import annotations

import os

import torch

from fedspan.benchmark import numerics
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.spec.cell import Cell
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.training.allocator import keep_freed_memory


def settle(how: How) -> None:
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


def device_of(name: str) -> torch.device:
    """Return the device called `name`; raise `UserError` if it does not exist here."""
    try:
        device = torch.device(name)
        known = device.type == "cuda" or name == "cpu"
    except RuntimeError:
        known = False
    if not known:
        raise UserError(f"device={name} is no device to train on; use cpu, cuda or cuda:0")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device={name}, but torch sees {torch.cuda.device_count()} CUDA devices; use device=cpu")
    return device


def numerics_of(cell: Cell, how: How) -> str:
    """Return a cell's numerics, portable or native; raise `UserError` if the requested ones are impossible."""
    return numerics.choose(how.numerics, how.device, cell.protocol.precision, how.threads)
