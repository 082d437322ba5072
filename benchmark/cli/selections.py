"""What the trials of a board have chosen, on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedspan.benchmark.records.selection import WORST, Selection


def show_selections(selections: Sequence[Selection]) -> None:
    """Print a line for each study: accuracies on validation images and the chosen settings; then what must be said."""
    table = Table(box=box.SIMPLE_HEAD, title="tuning", title_justify="left", title_style="bold")
    for heading in ("method", "task"):
        table.add_column(heading, overflow="fold")
    for heading in ("default", "tuned", "trial"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("chosen", overflow="fold")
    for found in selections:
        study, chosen = found.study, found.chosen
        row = [study.method, study.task, _percent(found.accuracies[0])]
        if chosen is None:
            row += ["", f"? of {len(study.trials)}", ""]
        else:
            values = ", ".join(f"{setting}={value}" for setting, value in study.values_of(chosen).items())
            row += [_percent(found.accuracies[chosen.number]), f"{chosen.number} of {len(study.trials)}", values]
        table.add_row(*map(Text, row))
    console = Console()
    console.print(table)
    for found in selections:
        if found.note:
            said = f"{found.study.method} on {found.study.task}: {found.note}"
            console.print(said, markup=False, highlight=False, soft_wrap=True)


def _percent(accuracy: float | None) -> str:
    return "" if accuracy is None else "diverged" if accuracy == WORST else f"{accuracy:.2f} %"
