"""Reruns of cells that failed or ran out of memory or time, from any board or command."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from fedspan.benchmark.errors import CorruptFile, UserError
from fedspan.benchmark.names import counted_as
from fedspan.benchmark.records.atomic import write_atomically
from fedspan.benchmark.records.exchange import recorded_words
from fedspan.benchmark.records.model import Record
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.registry import how_settings
from fedspan.benchmark.spec.compose import default_choices
from fedspan.benchmark.spec.overrides import settings_of
from fedspan.benchmark.spec.plan import plan
from fedspan.benchmark.spec.settings import how_defaults, paths_of

log = logging.getLogger("fedspan")

# Settings of a run that change bits: a retry takes those of the failed cell.
CHANGE_BITS = ("device", "executor", "threads", "numerics")


def diverged(results: Results) -> int:
    """Return the number of diverged records; a repetition would diverge at the same step."""
    return sum(entry.status == "diverged" for entry in results.entries().values())


def prepare(results: Results, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Write a board of the failed cells; return the settings to run it with, or None if no cell failed.

    `given` are the settings of the retry, such as dataset.root, where a plugin finds its data. The cells run as their
    own commands said, on the same device and with the same plugins, unless `given` says otherwise. A cell whose
    settings now make another cell, because a plugin changed, is skipped with a warning; raises `UserError` if all are
    skipped, or if their commands disagree.
    """
    grid, runs, left = [], list[tuple[Record, dict[str, Any]]](), 0
    for record in results.failed():
        try:
            words = recorded_words(record)
            if "plugins" in given:  # perhaps because the files lie elsewhere now
                words = [word for word in words if not word.startswith("plugins=")]
            made = settings_of(words)
            grid.append({key: [value] for key, value in _settings(record, made, given).items()})
            runs.append((record, made))
        except (CorruptFile, UserError) as error:
            left += 1
            log.warning("%s is not run again: %s", record["key"], error)
    if left and not grid:
        raise UserError(f"nothing to retry but {counted_as(left, 'cell')} that cannot be run again")
    if not grid:
        return None
    how = _how(runs, given)
    board = {"title": "Cells that are run again", "grid": grid}
    path = results.root / "retry.yaml"
    write_atomically(path, yaml.safe_dump(board, sort_keys=False).encode())
    return {"board": str(path), **how}


def _how(runs: Sequence[tuple[Record, Mapping[str, Any]]], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return how the failed cells ran, without what the retry sets; raise `UserError` if they disagree.

    `runs` are the failures with the settings of their commands.
    """
    found: dict[str, Any] = {}
    for name in CHANGE_BITS:
        if name in given:
            continue
        first, *others = dict.fromkeys(_effective(name, record, made) for record, made in runs)
        if others:
            raise UserError(f"the failed cells ran with {name}={first} and {others[0]}; give one for all of them")
        if said := next((made[name] for _, made in runs if name in made), None):
            found[name] = said
    if "plugins" not in given and (
        files := dict.fromkeys(file for _, made in runs for file in paths_of(made.get("plugins")))
    ):
        found["plugins"] = [*files]
    return found


def _effective(name: str, record: Record, made: Mapping[str, Any]) -> Any:
    """Return a setting's value as far as it changes a cell's bits: which GPU computes it, for example, does not."""
    value = made.get(name, how_defaults()[name])
    if name == "numerics" and value is None:
        return record["provenance"].get("numerics")
    return value.partition(":")[0] if name == "device" else value


def _settings(record: Record, made: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a record's cell, without where and how it ran; `made` are those of its own command.

    Raises `CorruptFile` if they now make another cell, `UserError` if they make none, as without a needed place.
    """
    settings = {key: value for key, value in made.items() if key.split(".")[0] not in how_defaults()}
    hows, choices = how_settings(), {**default_choices(), **settings}
    here = {name: value for name, value in given.items() if choices.get(name.split(".")[0]) in hows.get(name, ())}
    [planned] = plan([settings | here])
    if planned.cell.key != record["key"]:
        raise CorruptFile("its settings make another cell now; run its board or command again")
    return settings
