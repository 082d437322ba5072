"""The board of a sweep: the cells of a command line that names no board, with a table and a figure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from fedspan.benchmark import names
from fedspan.benchmark.records.model import compared_metric, judged
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.registry import KINDS
from fedspan.benchmark.spec.board import Board, Figure, Table
from fedspan.benchmark.spec.plan import PlannedCell
from fedspan.benchmark.spec.settings import is_how, is_place

NAME = "sweep"
OF_METHODS = ("algorithm", "addons", "addon")
OF_TASKS = ("clients", "participation", "unseen", *(kind for kind in KINDS if kind not in OF_METHODS))
APART = ("seed", "scale")  # settings along which runs are averaged, or never compared


def board_of(
    words: Sequence[str], axes: Mapping[str, list[Any]], cells: Sequence[PlannedCell], results: Results
) -> Board:
    """Return the board of the cells of a command line with these words.

    Its rows are the methods and the settings of the protocol that vary, its columns what varies of the task.
    """
    varied = [name for name, values in axes.items() if len(values) > 1]
    roots = {name: name.split(".")[0] for name in varied if name not in APART}
    rows = ("method", *(name for name, root in roots.items() if root not in (*OF_METHODS, *OF_TASKS)))
    columns = tuple(dict.fromkeys(root for root in roots.values() if root in OF_TASKS)) or ("partition",)
    return Board(
        name=NAME,
        title=_title([names.of_setting(name) for name in varied]),
        description="",
        base={},
        grid=(dict(axes),),
        scales={},
        tables=tuple(Table("", rows, columns, f"final.{metric}") for metric in _compared(cells, results)),
        figures=(Figure("accuracy", "Accuracy per round", rows, columns),),
        sweep=shlex.join(word for word in words if not _says_how(word.partition("=")[0])),
    )


def _title(varied: Sequence[str]) -> str:
    if not varied:
        return "A run by itself"
    *others, last = varied
    return f"Sweep over {', '.join(others)} and {last}" if others else f"Sweep over {last}"


def _says_how(name: str) -> bool:
    return is_how(name) or is_place(name)


def _compared(cells: Sequence[PlannedCell], results: Results) -> list[str]:
    """Return the accuracies by which the methods of some cells are compared, from their records."""
    read = (results.read(planned.cell.key) for planned in cells)
    done = (record for record in read if record and record["status"] == "done")
    last = (record["scores"].get(judged(record)[0], {}) for record in done)
    return list(dict.fromkeys(map(compared_metric, last))) or [compared_metric({})]
