"""Terminal summary of a grid: scores by method, best first, and the next command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from statistics import fmean, stdev

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedspan.benchmark import names
from fedspan.benchmark.protocol import Protocol
from fedspan.benchmark.spec.cell import Cell
from fedspan.benchmark.spec.overrides import place_words
from fedspan.benchmark.spec.plan import PlannedCell
from fedspan.benchmark.spec.settings import How, first_change

MOST_TASKS, MOST_METHODS = 3, 12  # shown on the terminal; the page of a board has all


def show_scores(console: Console, planned: Sequence[PlannedCell], accuracies: Mapping[str, float | None]) -> None:
    """Print the mean accuracy of each method over its seeds, by task, best first."""
    found = scores(planned, accuracies)
    for task, methods in list(found.items())[:MOST_TASKS]:
        console.print(Text(task, style="bold"))
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("method", overflow="fold")
        for heading in ("accuracy, %", "seeds"):
            table.add_column(heading, justify="right", no_wrap=True)
        for method, values in list(methods.items())[:MOST_METHODS]:
            spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
            table.add_row(Text(method), f"{fmean(values):.2f}{spread}", str(len(values)))
        console.print(table)
        if len(methods) > MOST_METHODS:
            console.print(f"and {len(methods) - MOST_METHODS} more methods", highlight=False)
    if len(found) > MOST_TASKS:
        console.print(f"and {len(found) - MOST_TASKS} more tasks", highlight=False)


def scores(planned: Sequence[PlannedCell], accuracies: Mapping[str, float | None]) -> dict[str, dict[str, list[float]]]:
    """Return task -> method -> accuracies of its seeds, methods ordered by mean, highest first.

    `accuracies` are those of finished cells by key, in percent; None where a method has none. A method under several
    protocols gets one entry per protocol, named with the fields that differ; cells that differ in their diagnostics
    alone train the same model and count once. Tasks of several scales are named with them.
    """
    found: dict[str, dict[str, dict[Protocol, dict[int, float]]]] = {}
    scales = {one.cell.scale for one in planned}
    called: dict[tuple[object, ...], tuple[str, str]] = {}
    for one in planned:
        if (accuracy := accuracies.get(one.cell.key)) is not None:
            task, method = _called(one.cell, called)
            task += f", scale {one.cell.scale}" if len(scales) > 1 else ""
            protocols = found.setdefault(task, {}).setdefault(method, {})
            protocols.setdefault(one.cell.protocol, {}).setdefault(one.cell.seed, accuracy)
    return {task: _ranked(methods) for task, methods in found.items()}


def _ranked(methods: Mapping[str, Mapping[Protocol, Mapping[int, float]]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for method, runs in methods.items():
        differing = [field.name for field in fields(Protocol) if len({getattr(one, field.name) for one in runs}) > 1]
        for protocol, values in runs.items():
            said = (names.of_value(f"protocol.{name}", getattr(protocol, name)) for name in differing)
            found[", ".join((method, *said))] = list(values.values())
    return dict(sorted(found.items(), key=lambda item: -fmean(item[1])))


def _called(cell: Cell, known: dict[tuple[object, ...], tuple[str, str]]) -> tuple[str, str]:
    """Return the names of a cell's task and method; `known` caches them by the identity of its parts."""
    if (alike := cell.identity_without_seed) not in known:
        what = cell.settings
        said = f"{names.task_name(what)}, {names.name_from('model', what['model'])}"
        known[alike] = said, names.method_name(what)
    return known[alike]


def next_step(how: How, asked: Sequence[str], verb: str = "report") -> str:
    """Return the command that shows the results of a grid, or does `verb`; `asked` are the words that chose it."""
    shown = how.board is not None or first_change(word.partition("=")[0] for word in asked)
    words = [*verb.split(), *asked] if shown else ["ui"]
    return shlex.join(["fedspan", *words, *place_words(how)])
