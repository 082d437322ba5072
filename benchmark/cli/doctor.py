"""`fedspan doctor`: a check of this installation."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedspan.benchmark import numerics
from fedspan.benchmark.cli.accepted import accepted
from fedspan.benchmark.data.download import state
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.fields import defaults_of
from fedspan.benchmark.mirror import database
from fedspan.benchmark.mirror.runs import Mirror, Unreachable, tracking_uri
from fedspan.benchmark.names import counted_as
from fedspan.benchmark.places import usable_cores
from fedspan.benchmark.records.provenance import git_commit, processor, versions
from fedspan.benchmark.records.record import is_record_file
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.registry import KINDS, Plugin, broken, plugins
from fedspan.benchmark.spec.presets import yaml_files
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.task import Dataset
from fedspan.benchmark.training.process import device_of

ACCEPTED = ("device", "paths.data", "paths.results", "plugins")


def show(arguments: argparse.Namespace) -> int:
    """Print one line per check; return 1 if one needs the user's attention."""
    config = accepted(arguments.settings, ACCEPTED, "doctor checks the machine, not a cell")
    table = Table(box=None, show_header=False, padding=(0, 1))
    healthy = True
    for good, what, found in _checks(config):
        healthy &= good
        table.add_row("[green]ok[/]" if good else "[red]!![/]", Text(what), Text(found, overflow="fold"))
    Console().print(table)
    return 0 if healthy else 1


def _checks(config: dict[str, Any]) -> Iterator[tuple[bool, str, str]]:
    how = How.of(config)
    device_of(how.device)
    yield True, "versions", ", ".join(f"{name} {version}" for name, version in versions().items())
    yield True, "checkout", git_commit() or "not a git checkout"
    yield True, "processor", f"{processor()}, {counted_as(usable_cores(), 'core')} to use"
    yield _numerics()
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    yield True, "GPUs", ", ".join(gpus) or "none (device=cpu)"
    for kind, plural in KINDS.items():
        yield bool(plugins(kind)), plural, ", ".join(plugins(kind)) or "none found"
    for one in broken():
        yield False, "broken plugin", one.text
    yield (
        bool(yaml_files("boards")),
        "boards",
        ", ".join(sorted(yaml_files("boards"))) or "no leaderboards/boards here",
    )
    yield True, "data folder", f"{how.data} ({'exists' if how.data.is_dir() else 'will be created'})"
    for name, cls in plugins("dataset").items():
        yield _dataset(name, cls, how.data)
    results = Results(how.results, sets_aside=False)
    yield _results(results)
    yield _tracking(results)


def _numerics() -> tuple[bool, str, str]:
    found = ", ".join(f"{library} {what}" for library, (what, _) in numerics.instructions_in_use().items())
    if numerics.prepared() == numerics.NATIVE:
        why = f"portable {lack}" if (lack := numerics.missing_features()) else f"{numerics.CHOICE}=native"
        return True, "numerics", f"native ({why}): {found}"
    return all(good for _, good in numerics.instructions_in_use().values()), "numerics", f"portable: {found}"


def _dataset(name: str, cls: type[Plugin], data: Path) -> tuple[bool, str, str]:
    label, dataset = f"dataset {name}", cls()
    assert isinstance(dataset, Dataset)
    if "root" in defaults_of(cls):
        return True, label, state(dataset, data)
    try:
        loaded = dataset.prepare(data)
    except UserError as error:
        return False, label, str(error)
    return True, label, f"{len(loaded.train)} training and {len(loaded.test)} test images of {loaded.shape}"


def _results(results: Results) -> tuple[bool, str, str]:
    where = results.root.absolute()
    if not where.exists():
        parent = next(folder for folder in where.parents if folder.exists())
        found = "will be created" if (good := os.access(parent, os.W_OK)) else f"{parent} cannot be written"
        return good, "results", f"{where}: {found}"
    try:
        results.check_writable()
    except UserError as error:
        return False, "results", str(error)
    count = sum(map(is_record_file, results.records.glob("*.json")))
    return True, "results", f"{where}, writable, {counted_as(count, 'record')}"


def _tracking(results: Results) -> tuple[bool, str, str]:
    """Return the state of the tracking store; opening the embedded one would create it."""
    uri, file = tracking_uri(results.root), results.root / database.NAME
    if uri == database.uri_of(file) and not file.exists():
        return True, "tracking", f"{uri}, will be created"
    try:
        mirror = Mirror(results)
    except Unreachable as error:
        return False, "tracking", f"not reachable: {error}"
    return True, "tracking", f"{mirror.uri}, reachable, {counted_as(len(mirror.runs), 'run')}"
