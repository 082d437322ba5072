"""MLflow as a leaderboard: one experiment per board and scale, in which each run is one number of its tables.

On a tuned board further runs say what the trials of each method chose, and what that gained.

The pages that `fedspan report` made are the source. An experiment is written whole when a number of it changed.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedspan.benchmark.errors import is_number
from fedspan.benchmark.mirror.runs import EXPERIMENT, Mirror, Unreachable, first_line, runs_of
from fedspan.benchmark.report.site import found
from fedspan.benchmark.report.summary import Summary, TableNumber

VIEW = "leaderboard"  # names the columns and the order in which MLflow shows an experiment
COLUMNS = ("rank", "mean", "std", "printed", "difference", "seeds", "seconds", "seconds_std", "gigaflop", "kilobytes")
TAGS = ("row", "column")


def name_of(summary: Summary) -> str:
    """Return the name of the experiment of a board at a scale."""
    return f"{EXPERIMENT}/{summary.board} ({summary.scale})"


def address_of(experiment: str) -> str:
    """Return where MLflow's page shows an experiment as a leaderboard, without the host."""
    return f"/#/experiments/{experiment}/runs?workflowType=machine_learning&viewStateShareKey={VIEW}"


def mirror(store: Mirror, pages: Path) -> dict[str, str]:
    """Bring the experiments of all boards up to date; return their addresses by name. Raises `Unreachable`."""
    try:
        return {name_of(summary): address_of(_write(store, summary)) for summary in found(pages) if summary.entries}
    except Exception as error:  # whatever a store and its network stack raise
        raise Unreachable(f"{store.uri}: {first_line(error)}") from error


def _write(store: Mirror, summary: Summary) -> str:
    """Write one board unless it is there as it is; return the experiment's id."""
    client = store.client
    experiment = store.experiment_of(name_of(summary))
    text = json.dumps(
        [asdict(entry) for entry in summary.entries] + [summary.title, summary.description, *summary.studies],
        sort_keys=True,
    )
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    if client.get_experiment(experiment).tags.get("fedspan.digest") == digest:
        return experiment
    for run in list(runs_of(client, experiment)):
        client.delete_run(run.info.run_id)
    now = int(1000 * time.time())
    for position, entry in enumerate(sorted(summary.entries, key=_order)):
        # MLflow shows the youngest first, so that the order holds without the view as well.
        _send(store, experiment, entry, len({e.table for e in summary.entries}) > 1, now - 1000 * position)
    for number, study in enumerate(summary.studies, len(summary.entries)):
        _send_study(store, experiment, study, now - 1000 * number)
    for key, value in {
        "mlflow.note.content": _note(summary, experiment),
        "mlflow.experimentKind": "custom_model_development",  # its page then begins with the runs
        f"mlflow.sharedViewState.{VIEW}": json.dumps(_view(summary.entries)),
        "fedspan.digest": digest,  # the last one: what was cut off is written again
    }.items():
        client.set_experiment_tag(experiment, key, value)
    return experiment


def _order(entry: TableNumber) -> tuple[Any, ...]:
    return (entry.table, json.dumps(entry.column), entry.rank or 0.0)


def _said(labels: dict[str, str]) -> str:
    return ", ".join(labels.values()) or "all"


def _send(store: Mirror, experiment: str, entry: TableNumber, several: bool, start: int) -> None:
    numbers = {
        "mean": entry.mean,
        "std": entry.std,
        "seeds": entry.n,
        "diverged": entry.diverged or None,
        "rank": entry.rank,
        "printed": entry.printed,
        "difference": entry.difference,
        "seconds": entry.cost.get("seconds"),
        "seconds_std": entry.cost.get("seconds_std"),
        "cells_beside": entry.cost.get("beside"),
        "gigaflop": _over(entry.cost.get("train_flops"), 1e9),
        "kilobytes": _over(
            _sum(entry.cost.get("bytes_up_per_client_round"), entry.cost.get("bytes_down_per_client_round")), 1e3
        ),
        "megabytes_of_memory": _over(entry.cost.get("memory_bytes"), 1e6),
    }
    tags = {"row": _said(entry.row), "column": _said(entry.column), "table": f"{entry.table}. {entry.title}"}
    tags |= {**entry.row, **entry.column, "metric": entry.metric, "mlflow.note.content": _links(store, entry)}
    place = f"{entry.table}: " if several else ""
    _create(store, experiment, f"{place}{_said(entry.row)} · {_said(entry.column)}", tags, numbers, start)


def _send_study(store: Mirror, experiment: str, study: Mapping[str, Any], start: int) -> None:
    """Write what the trials of a method on a task chose: settings as tags, accuracies and costs as metrics."""
    numbers = {name: value for name, value in study.items() if is_number(value)}
    tags = {"row": study["method"], "column": study["task"], "table": "tuning"}
    tags |= {"settings": study["settings"], "mlflow.note.content": study["note"]}
    _create(store, experiment, f"tuning: {study['method']} · {study['task']}", tags, numbers, start)


def _create(
    store: Mirror, experiment: str, name: str, tags: Mapping[str, str], numbers: Mapping[str, Any], start: int
) -> None:
    """Write a finished run; numbers that are None are left out."""
    run = store.client.create_run(
        experiment, start_time=start, run_name=name, tags={tag: value[:5000] for tag, value in tags.items()}
    )
    metrics = [
        store.metric(metric, round(float(value), 4), start) for metric, value in numbers.items() if value is not None
    ]
    store.client.log_batch(run.info.run_id, metrics=metrics)
    store.client.set_terminated(run.info.run_id, "FINISHED", end_time=start)


def _over(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _links(store: Mirror, entry: TableNumber) -> str:
    """Return a run's description: what the number is, and a link to each of its cells."""
    spread = "" if entry.std is None else f" ± {entry.std:.4g}"
    number = f"{entry.mean:.4g}{spread}" if entry.mean is not None else "none"
    lost = f"; {entry.diverged} diverged" if entry.diverged else ""
    lines = [f"{entry.metric}: {number} over {entry.n} of {entry.asked} seeds{lost}.", ""]
    for key in entry.keys:
        runs = list(store.runs.get(key, {}))
        lines.append(f"- [{key}](#/experiments/{store.experiment}/runs/{runs[0]})" if runs else f"- {key}")
    return "\n".join(lines)


def _note(summary: Summary, experiment: str) -> str:
    return (
        f"**{summary.title}**, scale {summary.scale}. [Show as a leaderboard]({address_of(experiment)[1:]}): "
        f"each run is one number, sorted by its rank.\n\n{summary.description}"
    )


def _view(entries: Sequence[TableNumber]) -> dict[str, Any]:
    """Return the state of MLflow's page: which columns, which order."""
    printed = any(entry.printed is not None for entry in entries)
    shown = [name for name in COLUMNS if printed or name not in ("printed", "difference")]
    columns = [f"tags.`{name}`" for name in TAGS] + [f"metrics.`{name}`" for name in shown]
    return {
        "selectedColumns": columns,
        "columnOrder": columns,
        "orderByKey": "metrics.`rank`",
        "orderByAsc": True,
        "runsHiddenMode": "FIRST_10_RUNS",
    }
