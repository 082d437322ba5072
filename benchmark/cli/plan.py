"""`fedspan plan`: numbers of done and missing cells, and the cost of the missing ones."""

from __future__ import annotations

import argparse
import contextlib
import math
from collections.abc import Callable, Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedspan.benchmark.cli.lists import never_tuned
from fedspan.benchmark.cli.main import tell
from fedspan.benchmark.component import Component
from fedspan.benchmark.errors import Incompatible, UserError
from fedspan.benchmark.names import counted_as
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.selection import select
from fedspan.benchmark.registry import prefix_of
from fedspan.benchmark.report import recipes
from fedspan.benchmark.report.declared import check_declared
from fedspan.benchmark.report.units import bytes_text, flops_text
from fedspan.benchmark.running.estimate import estimate, spread_gain
from fedspan.benchmark.running.grid import outdated
from fedspan.benchmark.running.launchers import check_how
from fedspan.benchmark.running.progress import duration
from fedspan.benchmark.running.sharing import obstacle
from fedspan.benchmark.search import fields_without_space
from fedspan.benchmark.spec.overrides import axes_of, split_hydra
from fedspan.benchmark.spec.plan import PlannedCell, distinct, plan_grid
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.spec.studies import Study, studies_of
from fedspan.benchmark.training.costs import ASSUMES, of_all


def show(arguments: argparse.Namespace) -> int:
    """Print the numbers of done and missing cells, and the estimated cost of the missing ones."""
    axes = axes_of(split_hydra(arguments.settings)[0])  # a launcher's options do not change the plan
    planned = plan_grid(axes)
    check_declared(axes)
    if arguments.costs:
        return _show_costs(planned)
    for problem in recipes.problems_of(axes):
        tell(problem)
    studies = studies_of(axes)
    how = How.of(planned[0].config)
    check_how(how, alone="board" not in axes and len(planned) == 1)
    results = Results(how.results, sets_aside=False)
    selections = [select(study, results.read) for study in studies]
    open_studies = [found.study for found in selections if found.chosen is None]
    reported = distinct([*planned, *(cell for found in selections for cell in found.tuned)])
    unknown = [cell for study in open_studies for cell in study.default]
    if studies:
        trials = distinct(cell for study in studies for cell in study.cells)
        numbers = sorted({study.tune.trials for study in studies})
        counts = " or ".join(map(str, numbers))
        each = f"a method on a task, {counts} trial{'s' if numbers != [1] else ''} each"
        of = f" of {counted_as(len(studies), 'study', 'studies')} ({each})"
        _show_missing("tuning", "trial", trials, [], results, how, of)
        if untuned := sorted({f"{one.name}'s {setting}" for study in studies for one, setting in _untuned(study)}):
            print(never_tuned(untuned))
    _show_missing("results" if studies else "", "cell", reported, unknown, results, how)
    for found in selections:
        if found.study.exhausted:
            print(f"{found.study.method} on {found.study.task}: {found.note}")
    return 0


def _untuned(study: Study) -> Iterator[tuple[Component, str]]:
    """Yield component and name of each numeric setting of a study's method that has no search space."""
    cell = study.default[0].cell
    for component in cell.components:
        for field in fields_without_space(type(component)):
            if (setting := f"{prefix_of(component)}.{field}") not in study.space:
                yield component, setting


def _show_missing(
    part: str,
    name: str,
    cells: Sequence[PlannedCell],
    unknown: Sequence[PlannedCell],
    results: Results,
    how: How,
    of: str = "",
) -> None:
    """Print how many cells of a part are done and missing, and the cost of the missing ones.

    `name` is the noun for its cells, `of` the text after their number. `unknown` stand for cells that the trials will
    choose; some may turn out to be duplicates.
    """
    known = results.entries([cell.cell.key for cell in cells])
    again = {cell.cell.key for cells in outdated(cells, known, results).values() for cell in cells} if how.fresh else ()
    missing = [
        cell for cell in cells if (e := known.get(key := cell.cell.key)) is None or e.status == "failed" or key in again
    ]
    failed = len({record["key"] for record in results.failed()} & {cell.cell.key for cell in missing})
    done, open_cells = len(cells) - len(missing), [*missing, *unknown]
    line = f"{counted_as(done + len(open_cells), name)}{of}: {done} done, {len(open_cells)} missing"
    said = f", at most {len(unknown)} of them tuned ones that the trials choose" if unknown else ""
    print(f"{part}: {line}{said}" if part else line)
    if failed:
        print(f"{failed} of the missing failed before and will be retried")
    if open_cells:
        workers = min(how.cells_at_a_time, len(open_cells))
        cost = estimate(missing, results, Console(stderr=True), unknown)
        wall = cost.seconds / workers
        basis = f" ({cost.basis})" if cost.basis else ""
        print(f"estimated: {duration(cost.seconds)} of one core, {duration(wall)} with workers={workers}{basis}")
        _show_gain(open_cells, how, wall, lone=len(cells) == 1 and how.board is None)
        for count, why in cost.failing:
            print(f"not counted: {count} that cannot run here ({why})")
        for count, why in cost.impossible:
            print(f"will be skipped: {count} ({why})")


def _show_gain(missing: Sequence[PlannedCell], how: How, wall: float, lone: bool) -> None:
    """Print the lower bound to which `wall` seconds shrink if idle workers help with the cells."""
    each = (how.workers or 1) // len(missing)
    if each <= 1 or obstacle(how, lone) or how.executor != "loop":  # other executors train clients side by side
        return
    with contextlib.suppress(UserError, Incompatible):  # the estimate gives the reason
        if (gain := spread_gain(missing[0].cell, how, each)) is not None:
            least, share = duration(wall / gain.times), f"the largest client is {gain.largest:.0%} of a round"
            print(f"each on {gain.workers} workers: {least} at least ({share})")


def _show_costs(planned: Sequence[PlannedCell]) -> int:
    def giga(value: float) -> str:
        return flops_text(1e9 * value)

    columns: dict[str, tuple[str, Callable[[float], str]]] = {
        "parameters": ("parameters", lambda value: f"{value:,.0f}"),
        "traffic a round": ("bytes_per_client_round", bytes_text),
        "in all": ("bytes", bytes_text),
        "compute a round": ("round_gflop", giga),
        "calibration": ("calibration_gflop", giga),
        "memory of a step": ("memory_bytes", bytes_text),
    }
    rows: dict[tuple[str, ...], dict[str, float] | str] = {}
    for one, found in zip(planned, of_all(planned), strict=True):
        cell = one.origin
        number = "" if isinstance(found, str) else str(sorted(found.items()))
        rows.setdefault((cell.dataset.name, cell.model.label(), cell.method_label, number), found)
    for dataset, model in dict.fromkeys(names[:2] for names in rows):
        table = Table(box=box.SIMPLE_HEAD, title=f"{model} on {dataset}", title_justify="left", title_style="bold")
        for heading in ("method", *columns):
            table.add_column(heading, justify="right" if heading in columns else "left")
        for (_, _, method, _), found in (
            (names, found) for names, found in rows.items() if names[:2] == (dataset, model)
        ):
            costs = {} if isinstance(found, str) else found
            table.add_row(Text(method), *(write(costs.get(name, math.nan)) for name, write in columns.values()))
        Console().print(table)
    print(ASSUMES)
    for why in dict.fromkeys(found for found in rows.values() if isinstance(found, str)):
        print(f"not computed: {why}")
    return 0
