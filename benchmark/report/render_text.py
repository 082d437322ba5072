"""A table as Markdown, CSV and LaTeX."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedspan.benchmark.names import counted_as
from fedspan.benchmark.report.analysis import Analysis, Standing, Targets, TimeToTarget
from fedspan.benchmark.report.axes import title
from fedspan.benchmark.report.statistics import Difference, Withheld
from fedspan.benchmark.report.table import TableCell, Tabulated
from fedspan.benchmark.report.units import bytes_text, seconds_text

STATE_TEXT = {"missing": "—", "absent": "—"}  # other states are written by name


def state_text(entry: TableCell) -> str:
    """Return the text of a cell without a number."""
    return STATE_TEXT.get(entry.state, entry.state)


def entry_text(table: Tabulated, entry: TableCell | None) -> str:
    """Return a cell as plain text: ``91.94 ± 0.31 (n=2/3)``; empty where the grid has no such cell."""
    if entry is None:
        return ""
    return ", ".join(filter(None, (measured_text(table, entry), printed_text(table, entry))))


def measured_text(table: Tabulated, entry: TableCell) -> str:
    """Return our measurement: ``91.94 ± 0.31 (n=2/3)``."""
    if entry.mean is None:
        return state_text(entry)
    spread = f" ± {table.metric.write_spread(entry.std)}" if entry.std is not None else ""
    count = f" ({count_text(entry)})" if table.shows_n(entry) else ""
    return f"{table.metric.write(entry.mean)}{spread}{count}"


def printed_text(table: Tabulated, entry: TableCell) -> str:
    """Return the printed number and our difference: ``printed 92.00 ± 0.20, −0.06 within``; empty without one."""
    found = entry.printed
    if found is None:
        return ""
    if found.printed.value is None:
        return "printed without a number"
    spread = f" ± {table.metric.write_spread(found.printed.std)}" if found.printed.std is not None else ""
    lead = "printed values give" if found.printed.derived else "printed"
    text = f"{lead} {table.metric.write(found.printed.value)}{spread}"
    if found.difference is None:
        return text
    within, outside = (" to rounding", " beyond rounding") if table.computed else (" within", " outside")
    verdict = {True: within, False: outside, None: ""}[found.within]
    return f"{text}, {table.metric.write_difference(found.difference)}{verdict}"


def count_text(entry: TableCell) -> str:
    """Return the number of seeds with a value, and of how many if some are missing: ``n=2/3``."""
    return f"n={entry.n}" if entry.whole else f"n={entry.n}/{entry.asked}"


def _escaped_markdown(text: str) -> str:
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", " ".join(text.split()))


def _heads(table: Tabulated) -> list[str]:
    """Return the headings of all visible columns."""
    return [*map(title, table.row_axes), *map(table.heading, table.columns), *(cost.title for cost in table.costs)]


def to_markdown(table: Tabulated) -> str:
    """Return the table under its title, with caption and notes."""

    def cell(entry: TableCell | None) -> str:
        body = _escaped_markdown(entry_text(table, entry))
        if entry is None:
            return body
        marks = f" [{', '.join(entry.marks)}]" if entry.marks else ""
        return (f"**{body}**" if entry.best else body) + marks

    names = _heads(table)
    body = [
        [*map(_escaped_markdown, row.labels), *map(cell, row.entries), *(cost.text(row.cost) for cost in table.costs)]
        for row in table.rows
    ]
    align = ["left"] * len(table.row_axes) + ["right"] * (len(names) - len(table.row_axes))
    grid = pd.DataFrame(body).to_markdown(
        index=False, headers=list(map(_escaped_markdown, names)), colalign=align, disable_numparse=True
    )
    notes = [f"- [{mark}] {_escaped_markdown(note)}" for mark, note in table.notes]
    notes += [f"- {_escaped_markdown(remark)}" for remark in table.remarks]
    blocks = [f"### Table {table.number}. {_escaped_markdown(table.title)}", _escaped_markdown(table.caption), grid]
    return "\n\n".join([*blocks, *(["\n".join(notes)] if notes else [])]) + "\n"


FORMULA = ("=", "+", "-", "@", "\t", "\r")


def safe_csv(lines: Sequence[Mapping[Any, Any]]) -> str:
    """Return lines as CSV, with an apostrophe before text that a spreadsheet would evaluate as a formula.

    As objects, because whole numbers beside a missing one would become floats.
    """
    inert = [{name: _inert(value) for name, value in line.items()} for line in lines]
    return pd.DataFrame(inert, dtype=object).to_csv(index=False, lineterminator="\n")


def _inert(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def to_csv(table: Tabulated) -> str:
    """Return one CSV line per table cell in full precision: score, seeds, cost, keys and reasons."""
    lines = []
    for row in table.rows:
        for column, entry in zip(table.columns, row.entries, strict=True):
            if entry is None:
                continue
            lines.append(
                {
                    **dict(zip(table.row_axes, row.labels, strict=True)),
                    **dict(zip(table.column_axes, column, strict=True)),
                    "metric": table.metric.path,
                    "minus": table.minus,
                    "relative": table.metric.relative,
                    "state": "done" if entry.state == "value" else entry.state,
                    "mean": entry.mean,
                    "std": entry.std,
                    "n": entry.n,
                    "asked": entry.asked,
                    "best": entry.best,
                    "printed": entry.printed and entry.printed.printed.value,
                    "printed_std": entry.printed and entry.printed.printed.std,
                    "printed_in": entry.printed and entry.printed.printed.source,
                    "difference": entry.printed and entry.printed.difference,
                    "within": entry.printed and entry.printed.within,
                    **entry.cost,
                    "seeds": " ".join(str(run.seed) for run in entry.runs),
                    "statuses": " ".join(run.status for run in entry.runs),
                    "keys": " ".join(run.key for run in entry.runs),
                    "repeated": "; ".join(run.repeated for run in entry.runs),
                    "reasons": "; ".join(dict.fromkeys(run.reason for run in entry.runs if run.reason)),
                }
            )
    return safe_csv(lines)


def _means(reach: TimeToTarget, clocked: bool) -> dict[str, float]:
    """Return the mean costs of reaching a target; with `clocked` also the time by the fleets' clocks."""
    means = {"rounds": reach.rounds, "bytes": reach.traffic, "seconds": reach.seconds}
    return means | {"simulated_seconds": reach.simulated} if clocked else means


def reach_text(reach: TimeToTarget | None) -> tuple[str, str]:
    """Return when a target is reached, and its cost as a second line; a mean that is a lower bound is never the first.

    ``4 rounds`` and ``398 MB · 62.0 ± 3.1 s``, with ``1.2 h simulated`` by a fleet's clock;
    ``2 of 3 seeds reach it`` and ``restricted mean 6 rounds · ...``.
    """
    if reach is None:
        return "", ""
    seeds = "seed" if reach.asked == 1 else "seeds"
    if not reach.n:
        so_far = f" ({reach.never} of {reach.asked} {seeds} so far)" if reach.never < reach.asked else ""
        return (f"not reached in {counted_as(reach.last, 'round')}{so_far}" if reach.last else "not reached"), ""
    cost = bytes_text(reach.traffic)
    if math.isfinite(reach.seconds):
        cost += f" · {seconds_text(reach.seconds, reach.seconds_std)}"
    if math.isfinite(reach.simulated):
        cost += f" · {seconds_text(reach.simulated)} simulated"
    known = reach.n + reach.never
    so_far = " so far" if known < reach.asked else ""
    if not reach.never:
        return f"{_rounds(reach.rounds)}{so_far and f' ({reach.n} of {reach.asked} {seeds}{so_far})'}", cost
    return (
        f"{reach.n} of {counted_as(known, 'seed')}{so_far} reach it",
        f"restricted mean {_rounds(reach.rounds)} · {cost}",
    )


def _rounds(mean: float) -> str:
    """Return a number of rounds, possibly a mean over runs."""
    return f"{mean:.3g} round{'' if mean == 1 else 's'}"


def targets_to_csv(found: Targets) -> str:
    """Return one CSV line per table cell: the target and how soon it is reached."""
    table = found.table
    clocked = any(math.isfinite(reach.simulated) for _, reached in found.rows for reach in reached if reach)
    lines = [
        {
            **dict(zip(table.row_axes, row.labels, strict=True)),
            **dict(zip(table.column_axes, column, strict=True)),
            "target": target,
            "reached": reach.n,
            "never": reach.never,
            "runs": reach.asked,
            "last_round": reach.last,
            **{name: value if reach.arrives else None for name, value in _means(reach, clocked).items()},
            **{f"restricted_{name}": value for name, value in _means(reach, clocked).items()},
            "seconds_std": reach.seconds_std,
        }
        for row, reached in found.rows
        for column, target, reach in zip(table.columns, found.targets, reached, strict=True)
        if reach is not None
    ]
    return safe_csv(lines)


def standings_to_csv(analysis: Analysis) -> str:
    """Return one CSV line per row: place, rank, wins, and the difference to the first row, or why it has no interval.

    Bounds come last, without the columns of competing rows.
    """
    lines: list[dict[str, Any]] = []
    for one in analysis.measured:
        gap = one.difference
        known = gap if isinstance(gap, Difference) else None
        standing = one if isinstance(one, Standing) else None
        lines.append(
            {
                **dict(zip(analysis.table.row_axes, one.row.labels, strict=True)),
                "columns": analysis.shared,
                "first_place": standing and standing.place.first,
                "last_place": standing and standing.place.last,
                "of": standing and standing.place.field,
                "rank": standing and standing.rank,
                "wins_percent": standing and standing.wins,
                "mean": one.mean,
                "difference": known and known.mean,
                "low": known and known.low,
                "high": known and known.high,
                "p": known and known.p,
                "sure": standing and standing.sure,
                "pairs": known and known.pairs,
                "withheld": gap.reason if isinstance(gap, Withheld) else "",
                "bound": standing is None,
            }
        )
    return safe_csv(lines)


LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "[": "{[}",  # at the start of a row, LaTeX would read these two as arguments of the preceding \\
    "*": "{*}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "—": "---",
    "−": r"$-$",
    "≈": r"$\approx$",
    "·": r"$\cdot$",
    "×": r"$\times$",
    "‡": r"\ddag{}",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "∞": r"$\infty$",
    "…": r"\dots{}",
    "“": "``",
    "”": "''",
    "‘": "`",
    "’": "'",
}


def _escaped_latex(text: str) -> str:
    """Return text escaped for LaTeX; characters beyond the Latin alphabets are written as their code, U+65E5."""
    return "".join(LATEX.get(character) or _latin(character) for character in " ".join(text.split()))


def _latin(character: str) -> str:
    return character if character.isascii() or "À" <= character <= "ſ" else f"U+{ord(character):04X}"


def to_latex(table: Tabulated, label: str) -> str:
    """Return a table environment for the package booktabs; `label` is its name for references."""

    def cell(entry: TableCell | None) -> str:
        body = _escaped_latex(entry_text(table, entry))
        if entry is None:
            return body
        marks = rf"\textsuperscript{{{','.join(entry.marks)}}}" if entry.marks else ""
        return (rf"\textbf{{{body}}}" if entry.best else body) + marks

    heads = list(map(_escaped_latex, _heads(table)))
    body = [
        [
            *map(_escaped_latex, row.labels),
            *map(cell, row.entries),
            *(_escaped_latex(cost.text(row.cost)) for cost in table.costs),
        ]
        for row in table.rows
    ]
    styler = pd.DataFrame(body, columns=range(len(heads))).style.hide(axis="index").relabel_index(heads, axis="columns")
    environment = styler.to_latex(
        hrules=True,
        position_float="centering",
        column_format="l" * len(table.row_axes) + "r" * (len(heads) - len(table.row_axes)),
        caption=f"{_escaped_latex(table.title)}. {_escaped_latex(table.caption)}",
        label=re.sub(r"[^A-Za-z0-9:-]", "-", label),
    )
    notes = [rf"\textsuperscript{{{mark}}}~{_escaped_latex(note)}" for mark, note in table.notes]
    notes += [_escaped_latex(remark) for remark in table.remarks]
    below = "".join(rf"\par\smallskip\footnotesize {note}" + "\n" for note in notes)
    end = "\\end{table}\n"
    return f"% needs \\usepackage{{booktabs}}\n{environment.removesuffix(end)}{below}{end}"
