"""MLflow as a leaderboard: one experiment per board and scale, with one run per row of its tables, best first.

On a tuned board, further runs hold the settings that each method's trials chose, and the gain from tuning. The last run
has the tables and figures of the board's page as artifacts.

The source is the pages made by `fedspan report`. An experiment is rewritten as a whole if any of its content changed.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedspan.benchmark import names
from fedspan.benchmark.errors import is_number
from fedspan.benchmark.mirror.runs import FOLDER, Mirror, Unreachable, first_line, metric_name, runs_of
from fedspan.benchmark.report.site import summaries_in
from fedspan.benchmark.report.summary import Summary, TableNumber

FORM = 5  # version of the format; a new one rewrites all boards
VIEW = "leaderboard"  # key of the columns and the order in which MLflow shows an experiment
COLUMNS = (
    "rank", "mean", "std", "printed", "difference", "seeds", "diverged", "seconds", "seconds_std", "gigaflop",
    "kilobytes",
)  # fmt: skip
FILES = "Tables and figures"  # the run with the files of the board's page
SUFFIXES = (".svg", ".png", ".pdf", ".md", ".csv", ".tex")
Row = Sequence[TableNumber]  # the numbers of one row of a table, by column


def name_of(summary: Summary) -> str:
    """Return the experiment name of a board at a scale."""
    return f"{summary.title} ({summary.board}, {summary.scale})"


def address_of(experiment: str) -> str:
    """Return the URL, without host, at which MLflow shows an experiment as a leaderboard."""
    return f"/#/experiments/{experiment}/runs?workflowType=machine_learning&viewStateShareKey={VIEW}"


def mirror(store: Mirror, pages: Path) -> dict[str, str]:
    """Update the experiments of all boards; return their URLs by name. Raises `Unreachable`."""
    try:
        return {
            name_of(summary): address_of(_write(store, summary, pages / summary.page))
            for summary in summaries_in(pages)
            if summary.entries
        }
    except Exception as error:  # any error of the store or its network stack
        raise Unreachable(f"{store.uri}: {first_line(error)}") from error


def _write(store: Mirror, summary: Summary, page: Path) -> str:
    """Write one board unless it is up to date; return the experiment's id."""
    client = store.client
    experiment = _experiment_of(store, summary)
    linked = [store.run_of(key) for entry in summary.entries for key in entry.keys]
    shown = [*map(asdict, summary.entries), summary.title, summary.description, *summary.studies, *linked]
    text = json.dumps([FORM, *shown], sort_keys=True)
    files = "".join(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n" for path in _files(page))
    digest = hashlib.sha256((text + files).encode()).hexdigest()[:16]
    if client.get_experiment(experiment).tags.get("fedspan.digest") == digest:
        return experiment
    for run in list(runs_of(client, experiment)):
        client.delete_run(run.info.run_id)
    now, widths = int(1000 * time.time()), _widths(summary.entries)
    rows = _rows(summary.entries, widths)
    for position, row in enumerate(rows):
        # MLflow shows the newest first, so the order also holds without the view.
        _send(store, experiment, row, widths, now - 1000 * position)
    for number, study in enumerate(summary.studies, len(rows)):
        _send_study(store, experiment, study, now - 1000 * number)
    _send_files(store, experiment, page, now - 1000 * (len(rows) + len(summary.studies)))
    for key, value in {
        **_tags(store, summary),
        "mlflow.note.content": _note(summary, experiment),
        "mlflow.experimentKind": "custom_model_development",  # its page then opens with the runs
        f"mlflow.sharedViewState.{VIEW}": json.dumps(_view(summary.entries, widths)),
        "fedspan.digest": digest,  # last: an interrupted write is repeated
    }.items():
        client.set_experiment_tag(experiment, key, value)
    return experiment


def _experiment_of(store: Mirror, summary: Summary) -> str:
    """Return the id of a board's experiment at a scale, created if necessary; a former title is replaced.

    The name comes first: experiments of earlier versions have no tags, and two experiments cannot have one name. If
    another results folder has it, the folder's digest is added.
    """
    client, name = store.client, name_of(summary)
    if (known := client.get_experiment_by_name(name)) is not None and store.is_foreign(known.tags):
        name = f"{name} [{store.folder[:8]}]"
        known = client.get_experiment_by_name(name)
    if known is None:
        wanted = " and ".join(f"tags.`{tag}` = '{value}'" for tag, value in _tags(store, summary).items())
        for former in client.search_experiments(max_results=1, filter_string=wanted):
            client.rename_experiment(former.experiment_id, name)
    return store.experiment_of(name)


def _tags(store: Mirror, summary: Summary) -> dict[str, str]:
    """Return the tags by which a board's experiment is found after a change of its title.

    Another folder's board, which the same server may show, may have the same name.
    """
    return {"fedspan.board": summary.board, "fedspan.scale": summary.scale, FOLDER: store.folder}


def _rows(entries: Sequence[TableNumber], widths: Mapping[int, int]) -> list[Row]:
    """Return the rows of all tables, sorted by table and mean rank; those without a rank last."""
    found: dict[tuple[int, str], list[TableNumber]] = {}
    for entry in entries:
        found.setdefault((entry.table, json.dumps(entry.row)), []).append(entry)
    return sorted(found.values(), key=lambda row: (row[0].table, _mean(row, "rank", widths) or math.inf))


def _widths(entries: Sequence[TableNumber]) -> dict[int, int]:
    """Return the number of columns of each table."""
    columns: dict[int, set[str]] = {}
    for entry in entries:
        columns.setdefault(entry.table, set()).add(json.dumps(entry.column))
    return {table: len(found) for table, found in columns.items()}


def _mean(row: Row, name: str, widths: Mapping[int, int]) -> float | None:
    """Return the mean of a field over all columns of a row's table, or None unless the row has it in each of them."""
    values = [getattr(entry, name) for entry in row]
    return None if None in values or len(row) < widths[row[0].table] else math.fsum(values) / len(values)


def _cost(row: Row, name: str, unit: float = 1.0) -> float | None:
    """Return the mean of the known costs of a row, or None."""
    values = [value for entry in row if (value := entry.cost.get(name)) is not None]
    return math.fsum(values) / len(values) / unit if values else None


def _said(labels: Mapping[str, str]) -> str:
    return ", ".join(names.of_axis_label(axis, label) for axis, label in labels.items()) or "all"


def _send(store: Mirror, experiment: str, row: Row, widths: Mapping[int, int], start: int) -> None:
    """Write a row as a run: mean rank and score over all columns, the score in each column, and mean costs.

    A diverged run is worse than any score, so a row with one has no mean score.
    """
    first, alone = row[0], widths[row[0].table] == 1
    diverged = sum(entry.diverged for entry in row)
    up, down = (_cost(row, f"bytes_{way}", 1e3) for way in ("up", "down"))
    numbers = {
        "rank": _mean(row, "rank", widths),
        "mean": None if diverged else _mean(row, "mean", widths),
        "std": first.std if alone else None,
        "seeds": sum(entry.n for entry in row),
        "diverged": diverged or None,
        "printed": _mean(row, "printed", widths),
        "difference": _mean(row, "difference", widths),
        "seconds": _cost(row, "seconds"),
        "seconds_std": _cost(row, "seconds_std"),
        "cells_beside": _cost(row, "beside"),
        "gigaflop": _cost(row, "flops", 1e9),
        "kilobytes": None if up is None or down is None else up + down,
        "megabytes_of_memory": _cost(row, "memory_bytes", 1e6),
    }
    if not alone:
        for entry in row:
            column = metric_name(_said(entry.column))
            numbers |= {column: entry.mean, f"{column} std": entry.std}
    tags = {"row": _said(first.row), "table": f"{first.table}. {first.title}", **first.row, "metric": first.metric}
    tags["mlflow.note.content"] = "\n\n".join(_links(store, entry) for entry in row)
    where = f" (table {first.table})" if len(widths) > 1 else ""
    _create(store, experiment, f"{_said(first.row)}{where}", tags, numbers, start)


def _send_files(store: Mirror, experiment: str, page: Path, start: int) -> None:
    """Write the run whose artifacts are the tables and figures of the board's page."""
    run = _create(store, experiment, FILES, {"table": FILES}, {}, start)
    for path in _files(page):
        store.client.log_artifact(run, str(path))


def _files(page: Path) -> list[Path]:
    """Return the tables and figures of a board's page."""
    return sorted(path for path in page.iterdir() if path.is_file() and path.suffix in SUFFIXES)


def _send_study(store: Mirror, experiment: str, study: Mapping[str, Any], start: int) -> None:
    """Write the choice of a method's trials on a task: settings as tags, accuracies and costs as metrics."""
    numbers = {name: value for name, value in study.items() if is_number(value)}
    tags = {"row": study["method"], "task": study["task"], "table": "tuning"}
    tags |= {"settings": study["settings"], "mlflow.note.content": study["note"]}
    _create(store, experiment, f"tuning: {study['method']} · {study['task']}", tags, numbers, start)


def _create(
    store: Mirror, experiment: str, name: str, tags: Mapping[str, str], numbers: Mapping[str, Any], start: int
) -> str:
    """Write a finished run and return its id; numbers that are None are omitted."""
    run = store.client.create_run(
        experiment, start_time=start, run_name=name, tags={tag: value[:5000] for tag, value in tags.items()}
    )
    metrics = [store.metric(metric, float(value), start) for metric, value in numbers.items() if value is not None]
    store.client.log_batch(run.info.run_id, metrics=metrics)
    store.client.set_terminated(run.info.run_id, "FINISHED", end_time=start)
    return str(run.info.run_id)


def _links(store: Mirror, entry: TableNumber) -> str:
    """Return a run's description: the meaning of its number, and a link to each of its cells."""
    spread = "" if entry.std is None else f" ± {entry.std:.4g}"
    number = f"{entry.mean:.4g}{spread}" if entry.mean is not None else "none"
    lost = f"; {entry.diverged} diverged" if entry.diverged else ""
    column = f"{_said(entry.column)}, " if entry.column else ""
    lines = [f"{column}{entry.metric}: {number} over {entry.n} of {entry.asked} seeds{lost}.", ""]
    for key in entry.keys:
        run = store.run_of(key)
        lines.append(f"- [{key}](#/experiments/{store.experiment}/runs/{run})" if run else f"- {key}")
    return "\n".join(lines)


def _note(summary: Summary, experiment: str) -> str:
    return (
        f"**{summary.title}**, scale {summary.scale}. [Show as a leaderboard]({address_of(experiment)[1:]}): "
        f"each run is one row of its tables, sorted by rank; the last, {FILES}, has the files.\n\n"
        f"{summary.description}"
    )


def _view(entries: Sequence[TableNumber], widths: Mapping[int, int]) -> dict[str, Any]:
    """Return the view state of MLflow's page: columns and order, with several tables one after another."""
    printed, several = any(entry.printed is not None for entry in entries), len(widths) > 1
    single = set(widths.values()) == {1}
    among = [] if single else list(dict.fromkeys(metric_name(_said(entry.column)) for entry in entries))
    left_out = {*(() if printed else ("printed", "difference")), *(() if single else ("std",))}
    left_out |= {"diverged"} if not any(entry.diverged for entry in entries) else set()
    shown = [name for name in (*COLUMNS[:2], *among, *COLUMNS[2:]) if name not in left_out]
    columns = (["tags.`table`"] if several else []) + [f"metrics.`{name}`" for name in shown]
    return {
        "selectedColumns": columns,
        "columnOrder": columns,
        "orderByKey": "attributes.start_time" if several else "metrics.`rank`",
        "orderByAsc": not several,
        "runsHiddenMode": "FIRST_10_RUNS",
    }
