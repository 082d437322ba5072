"""Grids: expand, skip what has a record, run the rest through any Hydra launcher, never stop for one failure."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from hydra.core.override_parser.types import Glob, Override
from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from rich.console import Console
from rich.table import Table

from benchmark import board as boards
from benchmark.board import Overrides, Planned
from benchmark.config import (
    command_of,
    how_defaults,
    make_cell,
    make_how,
    override_text,
    parse,
    plain_value,
    workers_of,
)
from benchmark.errors import Incompatible, UserError
from benchmark.progress import GridDisplay, StatusFile, read_status
from benchmark.record import Record, Results
from benchmark.rounds import How, Outcome, make_record, run_cell

log = logging.getLogger("fedspan")

DEATHS = 2  # times that a cell may take its worker down, the last time alone, before it counts as failed


def axes_of(arguments: Iterable[str]) -> dict[str, list[Any]]:
    """Return key -> values of the overrides of a command line; sweeps become several values."""
    axes: dict[str, list[Any]] = {}
    for override in parse(arguments):
        key = override.get_key_element()
        if not key:
            raise UserError(f"cannot read the override {override.input_line!r}; write name=value")
        if override.is_add() or override.is_delete() or override.package:
            raise UserError(f"'{override.input_line}': settings cannot be added, deleted or moved; write name=value")
        if key in axes:
            raise UserError(f"'{key}' is given twice; give it once, with -m as {key}=a,b")
        axes[key] = _values(override)
        if len(axes[key]) > 1 and key.split(".")[0] in how_defaults() and key != "board":
            raise UserError(f"'{override.input_line}': {key} says how to run, which takes one value for all cells")
    return axes


def _values(override: Override) -> list[Any]:
    if isinstance(override.value(), Glob) or (override.is_sweep_override() and not override.is_discrete_sweep()):
        raise UserError(f"'{override.input_line}': only lists of values and range(...) can be swept")
    values = list(override.sweep_iterator()) if override.is_sweep_override() else [override.value()]
    if any(isinstance(value, dict) for value in values):
        raise UserError(f"'{override.input_line}': set the settings one by one, as {override.key_or_group}.field=value")
    return [plain_value(value) for value in values]


def plan_grid(axes: dict[str, list[Any]]) -> list[Planned]:
    """Return the cells that a command line asks for, of its board or of its sweeps."""
    names = axes.get("board", [None])
    rest = {key: values for key, values in axes.items() if key != "board"}
    if names == [None]:
        return boards.plan(boards.product(rest))
    points: list[Overrides] = []
    for name in names:
        points += [{**point, "board": str(name)} for point in boards.load_board(str(name)).expand(rest)]
    try:
        return boards.plan(points)
    except UserError as error:
        raise UserError(f"board {', '.join(map(str, names))}: {error}") from None


def run_grid(arguments: Sequence[str], launcher: Launcher) -> list[Record]:
    """Run every cell that has no record yet; return all records; raise SystemExit(1) if a cell failed."""
    console = Console()
    planned = plan_grid(axes_of(arguments))
    how = make_how(planned[0].config)
    results = Results(how.results)
    results.check_writable()
    todo = [cell for cell in planned if results.read(cell.cell.key) is None]
    todo = sharing_last(cell for cell in todo if not _impossible(cell, how))
    workers = workers_of(planned[0].config)
    running = f"{len(todo)} to run with workers={workers}" if todo else "nothing to run"
    console.print(f"{_count(planned)}: {len(planned) - len(todo)} with a record, {running}", highlight=False)
    for cell in todo:
        (results.failures / f"{cell.cell.key}.json").unlink(missing_ok=True)
        (results.status / f"{cell.cell.key}.json").unlink(missing_ok=True)
    started = time.monotonic()
    mirror = _start_mirror(how) if planned[0].config["tracking"] else None
    try:
        if todo:
            display = GridDisplay(console, results, todo, len(planned) - len(todo), workers)
            with display.watching():
                _launch(launcher, todo, results, how)
    finally:
        if mirror is not None:
            _finish_mirror(mirror, console)
    records = [results.read(cell.cell.key) or results.failure(cell.cell.key) for cell in planned]
    found = [record for record in records if record is not None]
    summarise(console, planned, found, {cell.cell.key for cell in todo}, time.monotonic() - started)
    if any(record is None or record["status"] == "failed" for record in records):
        raise SystemExit(1)
    return found


def sharing_last(cells: Iterable[Planned]) -> list[Planned]:
    """Return the cells in order, but those that can start from another one's trained model after all the others."""
    cells = list(cells)
    trainers: dict[str, str] = {}
    for planned in sorted(cells, key=lambda planned: planned.cell.train_key != planned.cell.key):
        trainers.setdefault(planned.cell.train_key, planned.cell.key)
    return sorted(cells, key=lambda planned: trainers[planned.cell.train_key] != planned.cell.key)


def _impossible(planned: Planned, how: How) -> bool:
    """Record a stack that cannot be composed as skipped, without starting a worker for it."""
    try:
        planned.cell.method()
    except Incompatible:
        run_cell(planned.cell, how)
        return True
    return False


def _launch(launcher: Launcher, todo: Sequence[Planned], results: Results, how: How) -> None:
    """Hand cells to the launcher until each has an outcome; a worker that dies costs its own cell only.

    A launcher that loses one worker may stop the others too. The cells that were running then are the suspects:
    they are started again in halves, after the rest, until the one that kills its worker is alone.
    """
    deaths: Counter[str] = Counter()
    groups = [list(todo)]
    while groups:
        group = groups.pop(0)
        trouble = _launch_once(launcher, group)
        left = [cell for cell in group if not _has_outcome(cell, results)]
        suspects = [cell for cell in left if read_status(results.status / f"{cell.cell.key}.json") is not None]
        if left and not suspects and len(left) == len(group):
            raise UserError(f"the launcher started none of {_count(left)}: {trouble or 'it returned without a result'}")
        if left and trouble:
            kind = trouble.split(":")[0]
            log.warning("a worker died (%s); %s without a record will be started again", kind, _count(left))
        for cell in suspects:
            key = cell.cell.key
            deaths[key] += 1
            (results.status / f"{key}.json").unlink(missing_ok=True)
        if len(group) == 1 and suspects and deaths[group[0].cell.key] >= DEATHS:
            outcome = Outcome("failed", f"its worker died {DEATHS} times; is there enough memory?")
            results.write(make_record(group[0].cell, how, outcome, None))
            continue
        rest = [cell for cell in left if cell not in suspects]
        groups = [part for part in (rest, *groups, suspects[::2], suspects[1::2]) if part]


def _launch_once(launcher: Launcher, cells: Sequence[Planned]) -> str:
    """Launch the cells; return what went wrong with a worker, if anything."""
    jobs = [[override_text(key, value) for key, value in cell.overrides.items()] for cell in cells]
    try:
        returned: Sequence[JobReturn] = launcher.launch(jobs, initial_job_idx=0)
        for job in returned:
            if isinstance(job.return_value, UserError):
                raise job.return_value
    except (UserError, HydraException):
        raise
    except Exception as error:
        return f"{type(error).__name__}: {error}".split("\n")[0][:200]
    return ""


def _count(cells: Sequence[Any]) -> str:
    return f"{len(cells)} cell" + ("" if len(cells) == 1 else "s")


def _has_outcome(planned: Planned, results: Results) -> bool:
    key = planned.cell.key
    return results.path(key).exists() or (results.failures / f"{key}.json").exists()


def run_job(config: dict[str, Any], overrides: Sequence[str]) -> Record:
    """Run one cell in this process; every error becomes a failed record with its reason, kept beside the records.

    Raises `UserError` if not even that can be written.
    """
    command = command_of([text for text in overrides if not text.startswith(("workers=", "launcher=", "board="))])
    cell, how = make_cell(config), make_how(config, command)
    results = Results(how.results)
    status = StatusFile(results.status / f"{cell.key}.json")
    status.write({"label": cell.label, "rounds": cell.protocol.rounds})
    try:
        return run_cell(cell, how, status)
    except (Exception, SystemExit) as error:
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        record = make_record(cell, how, Outcome("failed", " ".join(reason.split())), None)
        if not isinstance(error, UserError):
            record["traceback"] = traceback.format_exc()
        results.write(record)
        return record
    finally:
        status.remove()


def summarise(
    console: Console, planned: Sequence[Planned], records: Sequence[Record], ran: set[str], seconds: float
) -> None:
    """Print how many cells ended how, and the reasons; those of failures go to standard error."""
    table = Table("outcome", "cells", "of them now", title=f"grid finished in {seconds:.0f} s", title_justify="left")
    for status in ("done", "skipped", "diverged", "failed"):
        keys = [record["key"] for record in records if record["status"] == status]
        if keys:
            table.add_row(status, str(len(keys)), str(len(ran & set(keys))))
    lost = len(planned) - len(records)
    if lost:
        table.add_row("without outcome", str(lost), str(lost))
    console.print(table)
    labels = {cell.cell.key: cell.cell.label for cell in planned}
    reasons: dict[tuple[str, str], list[str]] = {}
    for record in records:
        if record["status"] != "done":
            reasons.setdefault((record["status"], record["reason"]), []).append(labels[record["key"]])
    for (status, reason), cells in sorted(reasons.items()):
        more = f" and {len(cells) - 1} more" if cells[1:] else ""
        print(f"{status}: {cells[0]}{more}: {reason}", file=sys.stderr if status == "failed" else sys.stdout)


def _start_mirror(how: How) -> subprocess.Popen[str]:
    """Start the process that mirrors records to MLflow as they come; it ends when its input is closed."""
    command = [sys.executable, "-m", "benchmark.tracking", str(how.results)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def _finish_mirror(mirror: subprocess.Popen[str], console: Console) -> None:
    said, _ = mirror.communicate()
    if said.strip():
        console.print(said.strip(), markup=False, soft_wrap=True)
