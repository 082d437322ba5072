"""Reruns of cells that failed or ran out of memory or time, from any board or command."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fedspan.benchmark.errors import CorruptFile, UserError
from fedspan.benchmark.records.atomic import write_atomically
from fedspan.benchmark.records.exchange import words_of
from fedspan.benchmark.records.model import Record
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.registry import UnknownPlugin, how_settings
from fedspan.benchmark.spec.compose import default_choices
from fedspan.benchmark.spec.overrides import settings_of
from fedspan.benchmark.spec.plan import plan
from fedspan.benchmark.spec.settings import how_defaults

log = logging.getLogger("fedspan")


def diverged(results: Results) -> int:
    """Return the number of diverged records; a repetition would diverge at the same step."""
    return sum(entry.status == "diverged" for entry in results.entries().values())


def prepare(results: Results, places: Mapping[str, Any]) -> Path | None:
    """Write a board of the failed cells and return its file, or None if there are none.

    `places` are settings such as dataset.root, where a plugin finds its data. Failures stay until the cells run. A cell
    that its settings no longer make, because a plugin changed, is skipped with a warning; raises `UserError` if all are
    skipped.
    """
    failed = [results.failure(path.stem) for path in sorted(results.failures.glob("*.json"))]
    grid, left = [], 0
    for record in failed:
        if record is None or results.path(record["key"]).exists():
            continue
        try:
            grid.append({key: [value] for key, value in _settings(record, places).items()})
        except (CorruptFile, UserError) as error:
            left += 1
            log.warning("%s is not run again: %s", record["key"], error)
    if left and not grid:
        raise UserError(f"nothing to retry but {'a cell' if left == 1 else f'{left} cells'} that cannot be run again")
    if not grid:
        return None
    board = {"title": "Cells that are run again", "grid": grid}
    path = results.root / "retry.yaml"
    write_atomically(path, yaml.safe_dump(board, sort_keys=False).encode())
    return path


def _settings(record: Record, places: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a record's cell, without where and how it ran.

    Raises `CorruptFile` if they now make another cell, `UserError` if they make none, as without a needed place.
    """
    made = settings_of(words_of(record))
    settings = {key: value for key, value in made.items() if key.split(".")[0] not in how_defaults()}
    hows, choices = how_settings(), {**default_choices(), **settings}
    here = {name: value for name, value in places.items() if choices.get(name.split(".")[0]) in hows[name]}
    try:
        [planned] = plan([settings | here])
    except UnknownPlugin as error:
        if files := made.get("plugins"):
            raise UserError(f"{error}; its own command had plugins={files}") from None
        raise
    if planned.cell.key != record["key"]:
        raise CorruptFile("its settings make another cell now; run its board or command again")
    return settings
