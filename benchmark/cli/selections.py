"""Terminal tables of the settings that a board's trials have chosen."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedspan.benchmark.records.selection import WORST, Selection


def show_selections(selections: Sequence[Selection]) -> None:
    """Print a table per task with accuracies on validation images and the chosen settings, then all notes."""
    console = Console()
    for task in dict.fromkeys(found.study.task for found in selections):
        table = Table(box=box.SIMPLE_HEAD, title=f"validation accuracy on {task}", title_justify="left")
        table.add_column("method", overflow="fold")
        for heading in ("default", "tuned", "trial"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("chosen", overflow="fold")
        for found in selections:
            if found.study.task == task:
                table.add_row(*map(Text, _row(found)))
        console.print(table)
    for found in selections:
        if found.note:
            said = f"{found.study.method} on {found.study.task}: {found.note}"
            console.print(said, markup=False, highlight=False, soft_wrap=True)


def _row(found: Selection) -> tuple[str, ...]:
    study, chosen = found.study, found.chosen
    start = (study.method, _percent(found, 0))
    if chosen is None:
        return (*start, "", f"? of {len(study.trials)}", "")
    values = ", ".join(f"{setting}={value}" for setting, value in study.values_of(chosen).items())
    return (*start, _percent(found, chosen.number), f"{chosen.number} of {len(study.trials)}", values)


def _percent(found: Selection, number: int) -> str:
    accuracy = found.accuracies[number]
    return "" if accuracy is None else found.worst if accuracy == WORST else f"{accuracy:.2f}%"
