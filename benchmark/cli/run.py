"""`fedspan run`, `fedspan tune` and `fedspan retry`: one cell, or a grid."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from fedspan.benchmark import numerics
from fedspan.benchmark.cli.main import fail, tell
from fedspan.benchmark.cli.selections import show_selections
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.mirror.runs import Unreachable, sync
from fedspan.benchmark.names import counted_as
from fedspan.benchmark.records.model import Record
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.selection import select
from fedspan.benchmark.registry import broken
from fedspan.benchmark.report.declared import check_declared
from fedspan.benchmark.running import retry as again
from fedspan.benchmark.running.grid import POLL_SECONDS, refresh, run_grid
from fedspan.benchmark.running.hydra_jobs import make_launcher
from fedspan.benchmark.running.job import run_job
from fedspan.benchmark.running.launchers import check_how, launcher_words
from fedspan.benchmark.running.leases import EXPIRY, Busy, Leases, machine
from fedspan.benchmark.running.progress import describe
from fedspan.benchmark.running.sharing import check_workers
from fedspan.benchmark.running.summary import kept_text, next_step, show_traceback
from fedspan.benchmark.spec.compose import by_hydra, override_words, plain_config, resolve
from fedspan.benchmark.spec.overrides import axes_of, override_text, settings_of, split_hydra
from fedspan.benchmark.spec.plan import PlannedCell, distinct, plan_grid
from fedspan.benchmark.spec.settings import How, is_how, is_place, labels_alone
from fedspan.benchmark.spec.studies import studies_of
from fedspan.benchmark.training.process import device_of, numerics_of


def run(arguments: argparse.Namespace) -> int:
    """Train one cell, or with -m or board=NAME a grid."""
    settings, for_hydra = split_hydra(arguments.settings)
    axes = axes_of(settings)
    warn_of_broken_plugins()
    grid = arguments.multirun or "board" in axes
    if any(len(values) > 1 for values in axes.values()) and not grid:
        raise UserError("several values need -m: fedspan run -m " + shlex.join(arguments.settings) + _together(axes))
    planned = plan_grid(axes)
    check_declared(axes)
    for said in labels_alone(axes):
        tell(said)
    if arguments.cfg:
        return _show(planned, arguments.cfg, for_hydra)
    studies = studies_of(axes)
    trials = distinct(cell for study in studies for cell in study.cells)
    if arguments.command == "tune" and not studies:
        raise UserError("tune needs a board that tunes (board=digits_tuned); docs/tuning.md explains how")
    how = How.of(planned[0].config)
    check_how(how, alone=not grid)
    if not grid:
        _check_alone(how, for_hydra)
    _take_numerics([*planned, *trials], arguments)
    if not grid:
        return _run_one(planned[0], how)
    launcher = make_launcher([*launcher_words(how), *for_hydra])
    asked = [word for word in settings if word.startswith("board=") or not is_how(word.partition("=")[0])]
    without_result = 0
    if studies:
        without_result = run_grid(trials, launcher, asked)
        selections = [select(study, Results(how.results).read) for study in studies]
        show_selections(selections)
        planned = distinct([*planned, *(cell for selection in selections for cell in selection.tuned)])
    if arguments.command != "tune":
        without_result += run_grid(planned, launcher, asked)
    else:
        print(f"next: {next_step(how, asked, 'run -m')}")
    return int(without_result > 0)


def _check_alone(how: How, for_hydra: Sequence[str]) -> None:
    """Raise `UserError` for what a single run, which needs no launcher, would ignore."""
    if how.launcher == "ray" and how.workers is None:
        raise UserError("launcher=ray spreads one cell over workers; add workers=N, or -m for a grid")
    if how.launcher is not None and how.launcher.startswith("submitit") and how.workers in (None, 1):
        raise UserError(f"launcher={how.launcher} makes a job of each cell of a grid; add -m, or leave it out")
    if for_hydra:
        raise UserError(f"'{for_hydra[0]}' is for the launcher of a grid; add -m, or leave it out")


def _together(axes: Mapping[str, list[Any]]) -> str:
    """Return a hint on stacking several add-ons in one method; empty if there are not several."""
    names = axes.get("addons", [])
    if len(names) < 2 or not all(isinstance(name, str) for name in names):
        return ""
    return f"; for all of them in one method write 'addons=[{','.join(names)}]'"


def tune(arguments: argparse.Namespace) -> int:
    """Run the trials of a board and print the chosen settings."""
    arguments.multirun, arguments.cfg = True, None
    return run(arguments)


def _take_numerics(planned: Sequence[PlannedCell], arguments: argparse.Namespace) -> None:
    """Switch this process and its workers to the numerics of the cells; raise `UserError` if they need both modes.

    torch cannot change its instructions once loaded, so the command restarts itself if necessary.
    """
    modes = {numerics_of(one.cell, How.of(one.config)) for one in planned}
    if len(modes) > 1:
        raise UserError(
            "some cells of this grid are portable and others (protocol.precision=bf16) native, which needs processes "
            "of two kinds; split the grid, or use numerics=native"
        )
    [mode] = modes
    other = mode != numerics.prepared()
    numerics.switch(mode)
    if other and arguments.from_shell:
        sys.stdout.flush()
        python = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]  # the interpreter with its own options
        words = ["tune"] if arguments.command == "tune" else ["run", "-m"] if arguments.multirun else ["run"]
        os.execv(sys.executable, [sys.executable, *python[1:], *words, *arguments.settings])


def _show(planned: Sequence[PlannedCell], part: str, for_hydra: Sequence[str]) -> int:
    """Print the configuration that a run of the cell would use."""
    if len(planned) > 1:
        raise UserError(f"--cfg shows one cell; these settings make {len(planned)}")
    config = by_hydra([*override_words(planned[0].overrides), *for_hydra], hydra_config=part != "job")
    print(OmegaConf.to_yaml(config.hydra if part == "hydra" else config), end="")
    return 0


def _run_one(planned: PlannedCell, how: How) -> int:
    """Run a single cell from the configuration that Hydra composes, print the outcome, and mirror it."""
    device_of(how.device)
    check_workers(how)
    results = Results(how.results)
    for line in refresh([planned], results.entries([planned.cell.key]), results, how.fresh):
        print(line)
    known = results.path(planned.cell.key).exists()
    if not known:
        results.check_writable()
    results.forget_failure(planned.cell.key)
    outcome = _when_free(planned, results)
    results.remove_leftovers()
    status = _tell(outcome, planned, how, known)
    if how.tracking and outcome["status"] != "skipped" and not outcome.get("refused"):
        try:
            sync(how.results, [planned.cell.key])
        except Unreachable as error:
            fail(f"MLflow could not be reached ({error}); the record is kept, run 'fedspan sync' later")
    return status


def _when_free(planned: PlannedCell, results: Results) -> Record:
    """Return the outcome of a cell; wait while another machine may be computing it.

    Raise `UserError` if another process on this machine is.
    """
    words, key, label = override_words(planned.overrides), planned.cell.key, planned.cell.label
    leases, told = Leases(results.leases, EXPIRY), False
    while True:
        try:
            return run_job(plain_config(by_hydra(words)), words, lone=True)
        except Busy as busy:
            while (owner := leases.owner(key)) is not None:
                if owner.machine == machine():
                    raise UserError(f"{busy} is already computing {label}; wait for it") from None
                if not told:
                    print(f"{owner} has begun {label}; waiting for it, or for {EXPIRY:g} s without a sign of life")
                told = True
                time.sleep(POLL_SECONDS)
            leases.release_dead(key)


def _tell(outcome: Record, planned: PlannedCell, how: How, known: bool) -> int:
    """Print a cell's outcome; return 2 if its settings or data were refused, 1 if it failed or was skipped, else 0."""
    status, label = outcome["status"], planned.cell.label
    path = Results(how.results).path(planned.cell.key)
    if status in ("failed", "skipped"):
        kept = kept_text(outcome, how) if status == "failed" else f"(kept in {path})"
        fail(f"{label}: {describe(outcome)} {kept}")
        show_traceback(outcome, how)
        return 2 if outcome.get("refused") else 1
    seconds = outcome["compute"].get("seconds", {}).get("total", 0.0)
    print(f"{describe(outcome).strip()}  {label}  ({'already has a record' if known else f'{seconds:.1f} s'})\n{path}")
    return 0


def retry(arguments: argparse.Namespace) -> int:
    """Retry cells that failed or ran out of memory or time; a diverged cell keeps its result."""
    if not arguments.failed:
        raise UserError("write: fedspan retry --failed [name=value ...]")
    given = settings_of(split_hydra(arguments.settings)[0])
    settings = {key: value for key, value in given.items() if not is_place(key)}
    for key in settings:
        if not is_how(key) or key == "board":
            raise UserError(f"a retry repeats cells unchanged, so '{key}' cannot be set; see 'fedspan run'")
    results = Results(How.of(resolve(settings)).results)
    results.check_there()
    if count := again.diverged(results):
        print(
            f"{counted_as(count, 'diverged cell is', 'diverged cells are')} not retried: a repetition diverges again; "
            "if its sources changed, 'fedspan run' with fresh=true recomputes a cell"
        )
    how = again.prepare(results, given)
    if how is None:
        print("nothing to retry")
        return 0
    words = [*(override_text(name, value) for name, value in how.items()), *arguments.settings]
    again_run = {"command": "run", "settings": words, "multirun": True, "cfg": None}
    return run(argparse.Namespace(**again_run, from_shell=arguments.from_shell))


def warn_of_broken_plugins() -> None:
    """Print the files and installed plugins that could not be loaded, and why."""
    for one in broken():
        tell(one.text)
