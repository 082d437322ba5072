"""Where a number comes from: versions, source digests, machine, command."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from benchmark import __version__
from benchmark.cell import Cell

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


@cache
def git_commit() -> str | None:
    """Return the commit of the checkout that this package lies in, with ``+dirty`` if it was changed."""
    root = Path(__file__).parent.parent
    if not (root / ".git").exists():
        return None
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=root, capture_output=True, text=True, timeout=10, check=True,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+dirty" if changed else commit


@cache
def processor() -> str:
    """Return the processor's model name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def source_digests(cell: Cell) -> dict[str, str]:
    """Return a short sha256 of the source file of each plugin, so that a later edit can be noticed."""
    parts = (cell.dataset, cell.partition, cell.model, cell.algorithm, *cell.addons)
    digests = {}
    for part in parts:
        module = sys.modules.get(type(part).__module__)
        try:
            source = inspect.getsource(module) if module else ""
        except (OSError, TypeError):  # a class that was typed into an interpreter has no source
            source = ""
        digests[f"{part.kind}:{part.name}"] = hashlib.sha256(source.encode()).hexdigest()[:16]
    return digests


def provenance(cell: Cell, **more: Any) -> dict[str, Any]:
    """Return a record's provenance; `more` adds digests, device, executor and command."""
    return {
        "versions": versions(),
        "git_commit": git_commit(),
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "sources": source_digests(cell),
        **more,
    }
