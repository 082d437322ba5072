"""Numerics: the CPU instructions that torch may use, so that a cell gives the same bits on every x86-64 processor.

`portable` restricts the three libraries behind torch to instructions of all AVX2 processors: ATen's vector loops,
oneDNN's convolutions, and MKL's matrix products, whose code path otherwise also depends on the CPU vendor. The
libraries read their environment variables when they first compute, so importing this package prepares a process even
if torch is already imported. `check` verifies the instructions in use before a cell trains.
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache
from pathlib import Path

from fedspan.benchmark.errors import UserError, did_you_mean

PORTABLE, NATIVE = "portable", "native"
MODES = (PORTABLE, NATIVE)
CHOICE = "FEDSPAN_NUMERICS"  # numerics of processes started from here, unless a setting overrides them
VARIABLES = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "COMPATIBLE"}
NEEDED = {"avx2", "fma"}
ALL_OF_MKL, COMPATIBLE = -1, 3  # MKL_CBWR_ALL and MKL_CBWR_COMPATIBLE of its mkl_types.h


def prepare() -> None:
    """Make torch portable in this process and its children if possible, unless `FEDSPAN_NUMERICS` is native."""
    if os.environ.get(CHOICE) != NATIVE and missing_features() is None:
        os.environ.update(VARIABLES)


def switch(mode: str) -> None:
    """Make processes started from now on compute in `mode`.

    Limits that the user set for a native process are kept.
    """
    if mode == NATIVE and os.environ.get(CHOICE) != NATIVE:
        for name, value in VARIABLES.items():
            if os.environ.get(name) == value:
                del os.environ[name]
    os.environ[CHOICE] = mode
    prepare()


def prepared() -> str:
    """Return the mode that this process was prepared for."""
    ready = all(os.environ.get(name) == value for name, value in VARIABLES.items())
    return PORTABLE if ready and os.environ.get(CHOICE) != NATIVE else NATIVE


@cache
def missing_features() -> str | None:
    """Return what this machine lacks for `portable`, or None."""
    machine = platform.machine()
    if machine.lower() not in ("x86_64", "amd64"):
        return f"needs an x86-64 processor, this is {machine or 'another'}"
    missing = sorted(NEEDED - _flags())
    return f"needs a processor with {' and '.join(name.upper() for name in missing)}" if missing else None


def _flags() -> set[str]:
    try:
        with open("/proc/cpuinfo") as lines:
            return next((set(line.split()) for line in lines if line.startswith("flags")), set())
    except OSError:
        return set()


def choose(asked: str | None, device: str, precision: str, threads: int) -> str:
    """Return the numerics of a cell: portable if possible, unless `asked`, or else `FEDSPAN_NUMERICS`, is native.

    CUDA and bfloat16 kernels differ between processors, and the rounding of multi-threaded sums depends on the number
    of threads. Raises `UserError` if `asked` is not a mode, or is portable but impossible.
    """
    if asked is not None and asked not in MODES:
        raise UserError(f"unknown numerics '{asked}'{did_you_mean(asked, MODES)}")
    obstacle = missing_features()
    if threads > 1:
        obstacle = f"is computed in one thread, not with threads={threads}"
    if precision == "bf16":
        obstacle = f"is for float32, not for protocol.precision={precision}"
    if device != "cpu":
        obstacle = f"is for the CPU, not for device={device}"
    if asked == PORTABLE and obstacle:
        raise UserError(f"numerics=portable {obstacle}; use numerics=native, whose bits depend on the machine")
    return asked or (NATIVE if obstacle or os.environ.get(CHOICE) == NATIVE else PORTABLE)


def check() -> None:
    """Raise `UserError` if torch uses instructions that `portable` forbids; from then on its choice is fixed."""
    if differing := [f"{library} {found}" for library, (found, good) in instructions_in_use().items() if not good]:
        raise UserError(
            "numerics=portable is not possible in this process: torch already uses other instructions "
            f"({', '.join(differing)}); import FedSpan before anything computes with torch, or use numerics=native"
        )


def check_native() -> None:
    """Raise `UserError` if torch computes portably in this process: its results would not be native ones."""
    if all(good for _, good in instructions_in_use().values()):
        raise UserError(
            "these cells need native numerics, but importing FedSpan made torch portable in this process; start "
            f"Python with {CHOICE}={NATIVE} in its environment"
        )


def instructions_in_use() -> dict[str, tuple[str, bool]]:
    """Return each library's instructions in this process and whether `portable` allows them."""
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        branch = ctypes.CDLL(str(path)).mkl_serv_cbwr_get(ALL_OF_MKL)
    except (OSError, AttributeError):
        branch = None
    # oneDNN supports bfloat16 from AVX512 on, the next instruction set that its float32 kernels would use.
    wide = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return {
        "ATen": (capability, capability == "AVX2"),
        "MKL": (
            "absent" if branch is None else "COMPATIBLE" if branch == COMPATIBLE else "its own",
            branch == COMPATIBLE,
        ),
        "oneDNN": ("AVX512" if wide else "at most AVX2", not wide),
    }
