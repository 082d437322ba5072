"""Terminal summary of a grid: outcomes, scores by method, reasons and the next command."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from statistics import fmean, stdev

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedspan.benchmark import names
from fedspan.benchmark.errors import plain
from fedspan.benchmark.protocol import Protocol
from fedspan.benchmark.records.index import Entry
from fedspan.benchmark.records.model import Record
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.selection import WORST
from fedspan.benchmark.spec.cell import Cell
from fedspan.benchmark.spec.overrides import place_words
from fedspan.benchmark.spec.plan import PlannedCell
from fedspan.benchmark.spec.settings import How, first_change

MOST_TASKS, MOST_METHODS = 3, 12  # shown on the terminal; the page of a board has all


def show_scores(console: Console, planned: Sequence[PlannedCell], accuracies: Mapping[str, float | None]) -> None:
    """Print the mean accuracy of each method over its finished seeds, by task, best first, as `scores` orders them."""
    found = scores(planned, accuracies)
    for task, methods in list(found.items())[:MOST_TASKS]:
        console.print(Text(task, style="bold"))
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("method", overflow="fold")
        for heading in ("accuracy, %", "seeds"):
            table.add_column(heading, justify="right", no_wrap=True)
        for method, values in list(methods.items())[:MOST_METHODS]:
            finished = [value for value in values if value != WORST]
            mean = f"{fmean(finished):.2f}" if finished else ""
            spread = f" ± {stdev(finished):.2f}" if len(finished) > 1 else ""
            lost = f", {len(values) - len(finished)} diverged" if len(finished) < len(values) else ""
            table.add_row(Text(method), mean + spread, f"{len(finished)}{lost}")
        console.print(table)
        if len(methods) > MOST_METHODS:
            console.print(f"and {len(methods) - MOST_METHODS} more methods", highlight=False)
    if len(found) > MOST_TASKS:
        console.print(f"and {len(found) - MOST_TASKS} more tasks", highlight=False)


def scores(planned: Sequence[PlannedCell], accuracies: Mapping[str, float | None]) -> dict[str, dict[str, list[float]]]:
    """Return task -> method -> accuracies of its seeds, methods ordered by mean, highest first, diverged ones last.

    `accuracies` are those of cells by key, in percent: `WORST` for diverged runs, None where a method has none. A
    method under several protocols gets one entry per protocol, named with the fields that differ; cells that differ in
    their diagnostics alone train the same model and count once. Tasks of several scales, or on several copies of the
    images, are named with them.
    """
    found: dict[tuple[str, str], dict[str, dict[Protocol, dict[int, float]]]] = {}
    scales = {one.cell.scale for one in planned}
    called: dict[tuple[object, ...], tuple[str, str, str]] = {}
    for one in planned:
        if (accuracy := accuracies.get(one.cell.key)) is not None:
            task, images, method = _called(one.cell, called)
            task += f", scale {one.cell.scale}" if len(scales) > 1 else ""
            protocols = found.setdefault((task, images), {}).setdefault(method, {})
            protocols.setdefault(one.cell.protocol, {}).setdefault(one.cell.seed, accuracy)
    copies = Counter(task for task, _ in found)
    return {
        f"{task}, images {images}" if copies[task] > 1 else task: _ranked(methods)
        for (task, images), methods in found.items()
    }


def _ranked(methods: Mapping[str, Mapping[Protocol, Mapping[int, float]]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for method, runs in methods.items():
        differing = [field.name for field in fields(Protocol) if len({getattr(one, field.name) for one in runs}) > 1]
        for protocol, values in runs.items():
            said = (names.of_value(f"protocol.{name}", getattr(protocol, name)) for name in differing)
            found[", ".join((method, *said))] = list(values.values())
    return dict(sorted(found.items(), key=lambda item: -fmean(item[1])))


def _called(cell: Cell, known: dict[tuple[object, ...], tuple[str, str, str]]) -> tuple[str, str, str]:
    """Return the names of a cell's task, images and method; `known` caches them by the identity of its parts."""
    if (alike := cell.identity_without_seed) not in known:
        what = cell.settings
        said = f"{names.task_name(what)}, {names.name_from('model', what['model'])}"
        images = str(what["dataset"].get("content", ""))[:8] or "as published"
        known[alike] = said, images, names.method_name(what)
    return known[alike]


def next_step(how: How, asked: Sequence[str], verb: str = "report") -> str:
    """Return the command that shows the results of a grid, or does `verb`; `asked` are the words that chose it."""
    shown = how.board is not None or first_change(word.partition("=")[0] for word in asked)
    words = [*verb.split(), *asked] if shown else ["ui"]
    return shlex.join(["fedspan", *words, *place_words(how)])


def summarise(
    console: Console,
    planned: Sequence[PlannedCell],
    known: Sequence[Entry],
    failed: Sequence[Record],
    ran: set[str],
    seconds: float,
    how: How,
    asked: Sequence[str] = (),
) -> None:
    """Print the number of cells by outcome, and the reasons; failures, with their files, go to standard error."""
    table = Table("outcome", "cells", "of them now", title=f"grid finished in {seconds:.0f} s", title_justify="left")
    outcomes = [(entry.status, entry.key, entry.reason) for entry in known]
    outcomes += [(failure["status"], failure["key"], failure["reason"]) for failure in failed]
    for status in ("done", "skipped", "diverged", "failed"):
        keys = [key for ended, key, _ in outcomes if ended == status]
        if keys:
            table.add_row(status, str(len(keys)), str(len(ran & set(keys))))
    lost = len(planned) - len(outcomes)
    if lost:
        table.add_row("without outcome", str(lost), str(lost))
    console.print(table)
    accuracies = {entry.key: entry.accuracy for entry in known if entry.status == "done"}
    accuracies |= {entry.key: WORST for entry in known if entry.status == "diverged"}
    show_scores(console, planned, accuracies)
    _tell_reasons(outcomes, {cell.cell.key: cell.cell for cell in planned}, failed, how)
    if any(entry.status == "done" for entry in known) and not planned[0].cell.protocol.trial:
        step = next_step(how, asked)
        console.print(f"next: {step}", markup=False, highlight=False, soft_wrap=True)


def _tell_reasons(
    outcomes: Sequence[tuple[str, str, str | None]], cells: Mapping[str, Cell], failed: Sequence[Record], how: How
) -> None:
    """Print why cells are not done, each reason once; `outcomes` are (status, key, reason)."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for status, key, why in outcomes:
        if status != "done":
            reasons.setdefault((status, why or ""), []).append(key)
    kept = {failure["key"]: failure for failure in failed}
    for (status, reason), ended in sorted(reasons.items(), key=lambda found: found[0]):
        first = ended[0]
        line = f"{status}: {names.first_of(len(ended), cells[first].label)}: {reason}"
        if first in kept:
            print(plain(f"{line} {kept_text(kept[first], how)}"), file=sys.stderr)
            show_traceback(kept[first], how)
        else:
            print(plain(line))


def kept_text(failure: Record, how: How) -> str:
    """Return the end of a line about a failure: its file, and the setting that shows its traceback."""
    path = Results(how.results).failures / f"{failure['key']}.json"
    more = "; traceback=true shows where in the code" if "traceback" in failure and not how.traceback else ""
    return f"(kept in {path}{more})"


def show_traceback(failure: Record, how: How) -> None:
    """Print the traceback of a failure, if there is one and it is requested, to standard error."""
    if how.traceback:
        for line in failure.get("traceback", "").splitlines():
            print(plain(line), file=sys.stderr)
