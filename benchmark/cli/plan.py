"""`fedspan plan`: the cells of a grid done and missing, and the cost of the rest."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedspan.benchmark.records.results import Results
from fedspan.benchmark.report import recipes
from fedspan.benchmark.report.units import write_bytes, write_flops
from fedspan.benchmark.running.estimate import estimate
from fedspan.benchmark.running.progress import duration
from fedspan.benchmark.spec.overrides import axes_of
from fedspan.benchmark.spec.plan import Planned, plan_grid
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.training.costs import ASSUMES, of_all


def show(arguments: argparse.Namespace) -> int:
    """Print the numbers of cells done and missing, and the estimated cost of the rest."""
    planned = plan_grid(axes_of(arguments.settings))
    if arguments.costs:
        return _show_costs(planned)
    results = Results(How.of(planned[0].config).results, mends=False)
    records = {cell.cell.key: results.read(cell.cell.key) or results.failure(cell.cell.key) for cell in planned}
    missing = [cell for cell in planned if (record := records[cell.cell.key]) is None or record["status"] == "failed"]
    workers = min(How.of(planned[0].config).cells_at_a_time, max(len(missing), 1))
    print(f"{len(planned)} cells: {len(planned) - len(missing)} done, {len(missing)} missing")
    for problem in recipes.problems_of(axes_of(arguments.settings)):
        print(f"fedspan: {problem}", file=sys.stderr)
    failed = sum(record is not None and record["status"] == "failed" for record in records.values())
    if failed:
        print(f"{failed} of the missing failed before and will be retried")
    if missing:
        cost = estimate(missing, results, Console(stderr=True))
        wall = duration(cost.seconds / workers)
        print(f"estimated: {duration(cost.seconds)} of one core, {wall} with workers={workers} ({cost.basis})")
        for count, why in cost.failing:
            print(f"not counted: {count} that cannot run here ({why})")
    return 0


def _show_costs(planned: Sequence[Planned]) -> int:
    def giga(value: float) -> str:
        return write_flops(1e9 * value)

    columns: dict[str, tuple[str, Callable[[float], str]]] = {
        "parameters": ("parameters", lambda value: f"{value:,.0f}"),
        "traffic a round": ("bytes_per_client_round", write_bytes),
        "in all": ("bytes", write_bytes),
        "compute a round": ("round_gflop", giga),
        "calibration": ("calibration_gflop", giga),
        "memory of a step": ("memory_bytes", write_bytes),
    }
    rows: dict[tuple[str, ...], dict[str, float] | str] = {}
    for one, found in zip(planned, of_all(planned), strict=True):
        cell = one.origin
        method = " + ".join(component.label() for component in (cell.algorithm, *cell.addons))
        number = "" if isinstance(found, str) else str(sorted(found.items()))
        rows.setdefault((cell.dataset.name, cell.model.label(), method, number), found)
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
