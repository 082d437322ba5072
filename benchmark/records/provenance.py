"""Provenance of numbers: versions, source digests, machine, command."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from fedspan import __version__
from fedspan.benchmark import numerics
from fedspan.benchmark.places import PACKAGE
from fedspan.benchmark.records import sources
from fedspan.benchmark.records.model import machine_of
from fedspan.benchmark.records.sources import engine_digest, source_digests, uncommitted
from fedspan.benchmark.spec.cell import Cell
from fedspan.benchmark.spec.settings import How

PACKAGES = ("torch", "torchvision", "numpy", "hydra-core", "scikit-learn", "pillow")


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python, FedSpan and the packages that can change a number."""
    found = {"python": platform.python_version(), "fedspan": __version__}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


GENERATED = ("results", "leaderboards/pages")  # written into a checkout by a grid and a report


@cache
def git_commit() -> str | None:
    """Return the commit of this package's checkout, with ``+dirty`` if its sources were changed."""
    return commit_of(PACKAGE.parent)


def forget() -> None:
    """Read the sources and their commit again from now on: in a notebook, files are edited between runs."""
    sources.forget()
    git_commit.cache_clear()


def commit_of(root: Path) -> str | None:
    """Return the commit of a checkout, with ``+dirty`` if a tracked file outside `GENERATED` was changed."""
    if not (root / ".git").exists():
        return None

    def git(*words: str) -> str:
        command = ["git", *words]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        others = (f":(exclude){path}" for path in GENERATED)
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *others)
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+dirty" if changed else commit


@cache
def processor() -> str:
    """Return the processor's model name and the widest instruction set that torch would choose on it."""
    return f"{processor_name()} ({instructions()})"


def machine_here(device: str) -> str | None:
    """Return the kind of this machine, as `machine_of` does for a record computed here on `device`."""
    if device.startswith("cuda") and torch.cuda.is_available():
        return machine_of({"device": device, "gpu": torch.cuda.get_device_name(device)})
    return machine_of({"device": device, "processor": processor()})


def instructions() -> str:
    """Return the widest instruction set that torch would choose here: rounding of native numerics depends on it."""
    if numerics.prepared() == numerics.NATIVE:
        return torch.backends.cpu.get_cpu_capability()
    return "AVX512" if torch.cpu._is_avx512_supported() else "AVX2"


def processor_name() -> str:
    """Return the processor's model name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def origin(cell: Cell, how: How, device: torch.device, mode: str) -> dict[str, Any]:
    """Return everything besides data that the exact bits of a cell depend on; `mode` is its numerics."""
    return {
        "device": device.type,
        **({"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}),
        "executor": how.executor,
        "threads": how.threads,
        "numerics": mode if mode == numerics.PORTABLE else processor(),
        "versions": versions(),
        "engine": engine_digest(),
        "sources": source_digests(cell),
    }


def difference(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Return the first difference of `theirs` from `mine` in words, or an empty string."""
    for name, one in mine.items():
        other = theirs.get(name, "absent")
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            if said := difference(one, other):
                return said
        elif other != one:
            return f"{name.replace('_', ' ')} {str(other)[:60]}, here {str(one)[:60]}"
    return ""


def provenance(cell: Cell, **more: Any) -> dict[str, Any]:
    """Return a record's provenance; `more` adds digests, device, executor and command."""
    return {
        "versions": versions(),
        "git_commit": git_commit(),
        "uncommitted": uncommitted(cell),
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "engine": engine_digest(),
        "sources": source_digests(cell),
        **more,
    }
