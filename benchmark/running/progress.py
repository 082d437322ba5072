"""Progress of a grid: workers write small status files, the driver draws them."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fedspan.benchmark.errors import CorruptFile, is_number, plain
from fedspan.benchmark.records.atomic import read_json
from fedspan.benchmark.records.model import STAGES, TRIAL, judged
from fedspan.benchmark.records.record import LIMIT_BYTES
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.running.cell_run import CellProgress
from fedspan.benchmark.spec.plan import PlannedCell

LATEST = 5  # finished cells shown above the bar
INTERVAL = 0.5  # seconds between writes of a status file, and between looks on a terminal
UNSEEN_INTERVAL = 2.0  # between looks without a terminal: each asks the file system for every unfinished cell


class StatusFile:
    """A worker's report on its running cell; losing one costs nothing, so it is not synced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = 0.0

    def __call__(self, progress: CellProgress) -> None:
        now = time.monotonic()
        if now - self._written < INTERVAL:
            return
        self._written = now
        self.write(vars(progress))

    def write(self, values: dict[str, Any]) -> None:
        """Write the status now."""
        text = json.dumps({**values, "pid": os.getpid()})
        temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(text)
            temporary.replace(self.path)

    def remove(self) -> None:
        """Remove the file: the cell is no longer running."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


class Ended(msgspec.Struct):
    """Record fields shown in a progress line."""

    status: str = ""
    reason: str | None = None
    scores: dict[str, Any] = {}
    compute: dict[str, Any] = {}


S = TypeVar("S")


def read_as(path: Path, kind: type[S]) -> S | None:
    """Return a small file as `kind`, or None if it is invalid: it is only shown, so nothing is lost."""
    try:
        return read_json(path, kind, LIMIT_BYTES)
    except (OSError, CorruptFile):
        return None


class GridDisplay:
    """One live display on a terminal; elsewhere one line per finished cell."""

    def __init__(
        self, console: Console, results: Results, todo: Sequence[PlannedCell], done: int, workers: int
    ) -> None:
        self.console, self.results, self.workers = console, results, workers
        self.todo = labels_of(todo)
        self.known, self.total = done, done + len(todo)
        self.finished: dict[str, str] = {}  # status by key
        self._latest: deque[str] = deque(maxlen=LATEST)  # lines of the most recently finished cells
        self.started = time.monotonic()
        self._stop = threading.Event()
        self._bar = Progress(
            TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"), console=console,
        )  # fmt: skip
        self._task = self._bar.add_task("cells", total=self.total, completed=done, left="")

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Draw until the block ends."""
        live = Live(self.render(), console=self.console, refresh_per_second=4) if self.console.is_terminal else None
        thread = threading.Thread(target=self._loop, args=(live,), daemon=True)
        with live or contextlib.nullcontext():
            thread.start()
            try:
                yield
            finally:
                self._stop.set()
                thread.join()

    def _loop(self, live: Live | None) -> None:
        while not self._stop.wait(INTERVAL if live else UNSEEN_INTERVAL):
            self.look(live)
        self.look(live)

    def look(self, live: Live | None) -> None:
        """Show the cells finished since the last call: on `live`, or else one line per cell."""
        for key, label in self.todo.items():
            if key in self.finished:
                continue
            for folder in (self.results.records, self.results.failures):
                path = folder / f"{key}.json"
                if path.exists() and (record := read_as(path, Ended)) is not None:
                    self.finished[key] = record.status
                    self._latest.append(line := self._line(label, record))
                    if live is None:
                        self.console.print(line, markup=False, highlight=False, soft_wrap=True)
                    break
        if live is not None:
            live.update(self.render())

    def _line(self, label: str, record: Ended) -> str:
        number, seconds = self.known + len(self.finished), record.compute.get("seconds")
        total = seconds.get("total", 0.0) if isinstance(seconds, dict) else 0.0  # may be in a sidecar
        spent = f"{total:.1f} s" if is_number(total) else "?"
        said = describe(msgspec.structs.asdict(record))
        return f"[{number}/{self.total}] {said}  {label}  ({spent})"

    def seconds_left(self, running: Sequence[CellProgress]) -> float | None:
        """Return the expected seconds until the end, or None before any progress."""
        elapsed = time.monotonic() - self.started
        fraction = len(self.finished) + sum(_fraction(status) for status in running)
        if fraction <= 0:
            return None
        return elapsed * (len(self.todo) - fraction) / fraction

    def render(self) -> Group:
        """Return the current display."""
        written = {path.stem for path in self.results.status.glob("*.json")}  # of few cells, while `todo` may be long
        running = [
            replace(status, label=label)
            for key, label in self.todo.items()
            if key in written
            and key not in self.finished
            and (status := read_as(self.results.status / f"{key}.json", CellProgress))
        ]
        failed = sum(status == "failed" for status in self.finished.values())
        left = self.seconds_left(running)
        note = f"{len(running)} running, {failed} failed" + ("" if left is None else f", {duration(left)} left")
        self._bar.update(self._task, completed=self.known + len(self.finished), left=note)
        table = Table(box=None, show_header=False, padding=(0, 1))
        for column in ("label", "round", "client", "accuracy"):
            table.add_column(no_wrap=column != "label", overflow="fold")
        for status in running[: 2 * self.workers]:
            table.add_row(Text(plain(status.label)), *where(status))
        latest = Text("\n".join(self._latest), style="dim", no_wrap=True, overflow="ellipsis")
        return Group(*([latest] if self._latest else []), self._bar, table)


def labels_of(cells: Sequence[PlannedCell]) -> dict[str, str]:
    """Return the labels by key; equal ones get the settings in which their cells differ, as in a rate sweep."""
    alike: dict[str, list[PlannedCell]] = {}
    for planned in cells:
        alike.setdefault(planned.cell.label, []).append(planned)
    found = {planned.cell.key: label for label, group in alike.items() for planned in group}
    for label, group in alike.items():
        names = dict.fromkeys(name for planned in group for name in planned.overrides)
        varying = [name for name in names if len({str(planned.overrides.get(name)) for planned in group}) > 1]
        for planned in group:
            settings = [f"{name}={planned.overrides[name]}" for name in varying if name in planned.overrides]
            found[planned.cell.key] = ", ".join([label, *settings])
    return {planned.cell.key: found[planned.cell.key] for planned in cells}


def describe(record: Mapping[str, Any]) -> str:
    """Return a record's outcome in a few words: accuracy at the stage by which it is judged, or status and reason."""
    stage, accuracy = judged(record)
    if record.get("status") == "done" and is_number(accuracy):
        return f"{accuracy:6.2f}%" + {TRIAL: " of held-out images", STAGES[0]: ""}.get(stage, f" {stage}")
    return plain(f"{record.get('status')}: {record.get('reason')}")


def where(status: CellProgress) -> tuple[str, str, str]:
    """Return round, client and accuracy of a running cell, as far as known."""
    if not status.clients:
        return ("preparing", "", "")
    return (
        f"round {min(status.round + 1, status.rounds)}/{status.rounds}",
        f"client {status.client}/{status.clients}",
        "" if status.accuracy is None else f"{status.accuracy:.2f}%",
    )


def _fraction(status: CellProgress) -> float:
    return min(1.0, (status.round + status.client / max(status.clients, 1)) / status.rounds)


def duration(seconds: float) -> str:
    """Return seconds as text, such as ``2 h 05 min``."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
