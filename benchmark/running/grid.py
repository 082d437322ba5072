"""Grids: skip cells with a record, run the rest through any Hydra launcher, never stop for one failure."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from rich.console import Console

from fedspan.benchmark.errors import Incompatible, UserError
from fedspan.benchmark.names import counted_as, first_of
from fedspan.benchmark.places import interpreter
from fedspan.benchmark.records.atomic import discard
from fedspan.benchmark.records.index import Entry, Index, store_of
from fedspan.benchmark.records.model import Record
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.sources import REMEDY, stale
from fedspan.benchmark.records.verification import Repeated
from fedspan.benchmark.running.cell_run import Outcome, make_record
from fedspan.benchmark.running.leases import Leases, Owner
from fedspan.benchmark.running.progress import GridDisplay
from fedspan.benchmark.running.signals import GRACE, Stopped, handling
from fedspan.benchmark.running.summary import summarise
from fedspan.benchmark.spec.compose import override_words
from fedspan.benchmark.spec.overrides import command_of
from fedspan.benchmark.spec.plan import PlannedCell, check_images
from fedspan.benchmark.spec.settings import How

log = logging.getLogger("fedspan")

DEATHS = 2  # of workers after which a cell counts as failed; the last must happen while it runs alone
STARTS = 3  # failed launches in a row, without progress, until the grid ends: early deaths leave no lease
MIRROR_SECONDS = 2.0  # wait for the mirror at the end before telling the user
MIRROR_NICE = 10  # gets a tenth of a busy core; 19 gets a hundredth, and a grid would take minutes to end
POLL_SECONDS = 0.5  # between polls of cells that other processes compute


def run_grid(planned: Sequence[PlannedCell], launcher: Launcher, asked: Sequence[str] = ()) -> int:
    """Run every planned cell that has no record yet; return how many have no result afterwards.

    All cells share the settings of where and how to run. `asked` are the command-line words that chose them; the
    suggested next command repeats them.
    """
    console = Console()
    how = How.of(planned[0].config)
    results = Results(how.results)
    keys = [cell.cell.key for cell in planned]
    known = results.entries(keys)
    for line in refresh(planned, known, results, how.fresh):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if how.fresh:
        known = results.entries(keys)
    missing = [cell for cell in planned if cell.cell.key not in known]
    todo = [cell for cell in missing if not results.path(cell.cell.key).exists()]
    unread = len(missing) - len(todo)  # `Results` logs why
    if todo:
        check_images(planned)
        results.check_writable()
    todo = sharing_last(cell for cell in todo if not _impossible(cell, how))
    workers = how.cells_at_a_time
    running = f"{len(todo)} to run with workers={workers}" if todo else "nothing to run"
    kept = f"{unread} with an unusable record (move it away to rerun), " if unread else ""
    done = len(planned) - len(todo) - unread
    console.print(f"{_cells(planned)}: {done} with a record, {kept}{running}", highlight=False, soft_wrap=True)
    for cell in todo:
        results.forget_failure(cell.cell.key)
    started = time.monotonic()
    to_send = how.tracking and (todo or not all_mirrored(results, known))
    with mirroring(keys, how, console) if to_send else contextlib.nullcontext():
        if todo:
            display = GridDisplay(console, results, todo, len(planned) - len(todo), workers)
            with display.watching(), _passing_on(results):
                launch_all(launcher, todo, results, how)
    results.remove_leftovers()
    known = results.entries(keys) if missing else known
    failed = [failure for key in keys if key not in known and (failure := results.failure(key)) is not None]
    ran = {cell.cell.key for cell in todo}
    summarise(console, planned, [*known.values()], failed, ran, time.monotonic() - started, how, asked)
    return sum(key not in known or known[key].status == "failed" for key in keys)


def all_mirrored(results: Results, known: Mapping[str, Entry]) -> bool:
    """Return whether the tracking store, when last written to, held all these records unchanged."""
    if (store := store_of(results.root)) is None:
        return False
    mirrored = Index(results.root).mirrored(store)
    return all(mirrored.get(key) == entry.beginning for key, entry in known.items())


def outdated(
    planned: Sequence[PlannedCell], known: Mapping[str, Entry], results: Results
) -> dict[str, list[PlannedCell]]:
    """Return the cells whose records other sources made, grouped by remark."""
    found: dict[str, list[PlannedCell]] = {}
    repeated = Repeated.of(results)
    fits: dict[tuple[Any, ...], bool] = {}  # a cache: cells share plugins, and records share sources
    for cell in planned:
        entry = known.get(cell.cell.key)
        if entry is None:
            continue
        case = entry.made, *map(type, cell.cell.plugins)
        if case not in fits:
            fits[case] = not stale(json.loads(entry.made), cell.cell)
        if fits[case]:
            continue
        by = repeated.of_digest(entry.key, entry.digest).repeated_by
        if said := stale(json.loads(entry.made), cell.cell, by):
            found.setdefault(said, []).append(cell)
    return found


def refresh(planned: Sequence[PlannedCell], known: Mapping[str, Entry], results: Results, fresh: bool) -> list[str]:
    """Return a line for each way in which records of these cells were not made by the current sources.

    With `fresh` such records are set aside, so that their cells run again; raises `UserError` before that if no setting
    names the images of one.
    """
    found = outdated(planned, known, results)
    again = [cell for cells in found.values() for cell in cells] if fresh else []
    check_images([cell for cell in again if cell.cell.dataset.unplaced()])
    for cell in again:
        results.set_record_aside(cell.cell.key)
    what = f"moved to {results.aside}" if fresh else REMEDY
    return [
        f"{counted_as(len(cells), 'record')} {said}: {first_of(len(cells), cells[0].cell.label)}; {what}"
        for said, cells in sorted(found.items())
    ]


def sharing_last(cells: Iterable[PlannedCell]) -> list[PlannedCell]:
    """Return the cells in order, but with those that can reuse another one's trained model at the end.

    Just before them come the cells that train these models, since only the models used last are kept.
    """
    cells = list(cells)
    trainers: dict[str, str] = {}
    for planned in sorted(cells, key=lambda planned: planned.cell.train_key != planned.cell.key):
        trainers.setdefault(planned.cell.train_key, planned.cell.key)
    users = Counter(planned.cell.train_key for planned in cells)

    def turn(planned: PlannedCell) -> int:
        train_key, key = planned.cell.train_key, planned.cell.key
        return (users[train_key] > 1) + (trainers[train_key] != key)

    return sorted(cells, key=turn)


def _impossible(planned: PlannedCell, how: How) -> bool:
    """Return whether a cell's stack cannot be composed; if so, record it as skipped, which needs no device or data."""
    try:
        planned.cell.method()
    except Incompatible as reason:
        Results(how.results).write(_not_run(planned, how, Outcome("skipped", str(reason))))
        return True
    return False


def _not_run(planned: PlannedCell, how: How, outcome: Outcome) -> Record:
    """Return the record of a cell that no worker could record, with the command that runs it."""
    return make_record(planned.cell, replace(how, command=command_of(override_words(planned.overrides))), outcome, None)


def launch_all(launcher: Launcher, todo: Sequence[PlannedCell], results: Results, how: How) -> None:
    """Launch cells until each has an outcome; a worker that dies costs only its own cell.

    A launcher that loses one worker may stop the others too. The cells running at that moment are the suspects: they
    restart in halves, after the rest, until the one that kills its worker is alone. Cells computed by other grids are
    waited for, and started if their owner dies, as suspects too: a worker on another machine is known to have died only
    when its lease expires. A cell that a cluster ends early is started again as long as there is progress: an outcome
    or a checkpoint. Raises `UserError` if launches make none.
    """
    leases, deaths = Leases(results.leases), _Deaths(results, how)
    fruitless, groups, elsewhere = 0, [list(todo)], list[PlannedCell]()
    while groups or elsewhere:
        if not groups:
            free, suspects = _first_free(elsewhere, leases, results)
            elsewhere = [
                cell for cell in elsewhere if cell not in (*free, *suspects) and not _has_outcome(cell, results)
            ]
            groups = [part for part in (free, *deaths.halves_of(suspects)) if part]
            continue
        group = groups.pop(0)
        deaths.starts(group)
        saved = _checkpoints(group, results)
        trouble = _launch_once(launcher, group)
        left = [cell for cell in group if not _has_outcome(cell, results)]
        suspects = [cell for cell in left if leases.release_dead(cell.cell.key)]
        busy = [cell for cell in left if leases.owner(cell.cell.key) is not None]
        rest = [cell for cell in left if cell not in suspects and cell not in busy]
        progress = len(rest) < len(group) or _checkpoints(group, results) != saved
        fruitless = 0 if progress else fruitless + 1
        if fruitless >= (STARTS if trouble else 1):
            raise UserError(f"the launcher made no progress with {_cells(rest)}: {trouble or 'it returned no result'}")
        if left and trouble:
            log.warning("a worker ended (%s); %s will be started again", trouble.split(":")[0], _cells(left))
        elsewhere += busy
        groups = [part for part in (rest, *groups, *deaths.halves_of(suspects)) if part]


class _Deaths:
    """Deaths of each cell's worker. Only a cell that was last started alone can have caused one."""

    def __init__(self, results: Results, how: How) -> None:
        self._results, self._how = results, how
        self._count: Counter[str] = Counter()
        self._alone: set[str] = set()

    def starts(self, cells: Sequence[PlannedCell]) -> None:
        """Note which cells start together, or alone."""
        keys = {cell.cell.key for cell in cells}
        self._alone = self._alone | keys if len(cells) == 1 else self._alone - keys

    def halves_of(self, suspects: Sequence[PlannedCell]) -> tuple[list[PlannedCell], list[PlannedCell]]:
        """Count a death for each cell; record as failed what died too often, return the others in two halves."""
        left = []
        for cell in suspects:
            key = cell.cell.key
            self._count[key] += 1
            discard(self._results.status / f"{key}.json")
            if key in self._alone and self._count[key] >= DEATHS:
                outcome = Outcome("failed", f"its worker died {DEATHS} times; is there enough memory?")
                self._results.write(_not_run(cell, self._how, outcome))
            else:
                left.append(cell)
        return left[::2], left[1::2]


def _first_free(
    cells: Sequence[PlannedCell], leases: Leases, results: Results
) -> tuple[list[PlannedCell], list[PlannedCell]]:
    """Wait for cells that other processes compute.

    Return the first that are free, and those whose worker died; neither if all have outcomes.
    """
    log.info("waiting for %s that another process computes", _cells(cells))
    while cells := [cell for cell in cells if not _has_outcome(cell, results)]:
        free = [cell for cell in cells if leases.owner(cell.cell.key) is None and not _has_outcome(cell, results)]
        if free:
            suspects = [cell for cell in free if leases.release_dead(cell.cell.key)]
            return [cell for cell in free if cell not in suspects], suspects
        time.sleep(POLL_SECONDS)
    return [], []


def _checkpoints(cells: Iterable[PlannedCell], results: Results) -> dict[str, int]:
    """Return when each cell was last saved, in nanoseconds, for those that have a checkpoint."""
    saved = {}
    for cell in cells:
        with contextlib.suppress(FileNotFoundError):
            saved[cell.cell.key] = results.checkpoint(cell.cell.key).stat().st_mtime_ns
    return saved


def _launch_once(launcher: Launcher, cells: Sequence[PlannedCell]) -> str:
    """Launch the cells; return why a worker ended early in one line, empty if none did."""
    jobs = [override_words(cell.overrides) for cell in cells]
    try:
        returned: Sequence[JobReturn] = launcher.launch(jobs, initial_job_idx=0)
        for job in returned:
            if isinstance(job.return_value, UserError):
                raise job.return_value
        if any(isinstance(job.return_value, Stopped) for job in returned):
            return "Stopped: the cluster ended its job"
    except (UserError, HydraException):
        raise
    except Exception as error:
        return f"{type(error).__name__}: {error}".split("\n")[0][:200]
    return ""


def _cells(cells: Sequence[Any]) -> str:
    return counted_as(len(cells), "cell")


def _has_outcome(planned: PlannedCell, results: Results) -> bool:
    key = planned.cell.key
    return results.path(key).exists() or (results.failures / f"{key}.json").exists()


@contextlib.contextmanager
def mirroring(keys: Iterable[str], how: How, console: Console) -> Iterator[None]:
    """Mirror the records of these cells to MLflow as they are written, in a low-priority process.

    The process ends when its input is closed.
    """
    command = [*interpreter(), "-m", "fedspan.benchmark.mirror.runs", str(how.results)]
    mirror = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    if hasattr(os, "setpriority"):
        mine = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, mirror.pid, max(mine, MIRROR_NICE))  # only root may raise a priority

    def tell() -> None:
        with contextlib.suppress(BrokenPipeError):  # already exited
            print(*keys, file=mirror.stdin, flush=True)

    # It reads once it has imported torch; until then many keys fill the pipe, and training would wait.
    telling = threading.Thread(target=tell, daemon=True)
    telling.start()
    try:
        yield
        telling.join()
        try:
            said, _ = mirror.communicate(timeout=MIRROR_SECONDS)
        except subprocess.TimeoutExpired:
            console.print("sending records to MLflow; Ctrl-C leaves the rest to 'fedspan sync'", highlight=False)
            said, _ = mirror.communicate()
    except BaseException:  # the next run sends the rest
        mirror.kill()
        mirror.wait()
        raise
    if said.strip():
        console.print(said.strip(), markup=False, soft_wrap=True)


@contextlib.contextmanager
def _passing_on(results: Results) -> Iterator[None]:
    """Pass SIGTERM on to this driver's workers, and give them time to save their cells before the driver ends."""
    leases, asked = Leases(results.leases), False

    def workers() -> list[Owner]:
        return [owner for owner in leases.held() if owner.is_ours]

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked, deadline = True, time.monotonic() + GRACE
        for worker in workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGTERM)
        while workers() and time.monotonic() < deadline:
            time.sleep(0.1)
        raise Stopped

    with handling({signal.SIGTERM: end}):
        try:
            yield
        except KeyboardInterrupt as error:  # Ray raises one of its own in place of `Stopped`
            raise Stopped if asked else error from None
