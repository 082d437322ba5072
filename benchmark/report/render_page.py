"""The page of a board, and the page of the runs behind one of its numbers."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from markupsafe import Markup

from fedspan.benchmark import names
from fedspan.benchmark.data.published import Published
from fedspan.benchmark.fields import defaults_of
from fedspan.benchmark.records.model import STAGES, compared_metric
from fedspan.benchmark.records.verification import samples
from fedspan.benchmark.registry import plugins
from fedspan.benchmark.report import figures
from fedspan.benchmark.report.analysis import Analysis, Targets
from fedspan.benchmark.report.axes import TUNING, common_and_distinct, flat, text, without_settings
from fedspan.benchmark.report.diagrams import Diagram
from fedspan.benchmark.report.frame import COSTS, STATUSES
from fedspan.benchmark.report.metric import Metric
from fedspan.benchmark.report.overview import FIELDS, sentence
from fedspan.benchmark.report.pages import render, slug
from fedspan.benchmark.report.recipes import Sourced
from fedspan.benchmark.report.summary import family_of, method_name, task_of
from fedspan.benchmark.report.table import Tabulated
from fedspan.benchmark.report.tuning import TunedMethod, sensitivities, tuning_facts
from fedspan.benchmark.report.units import bytes_text, cost_columns, flops_text, seconds_text
from fedspan.benchmark.spec.board import Board
from fedspan.benchmark.spec.overrides import place_words
from fedspan.benchmark.spec.plan import PlannedCell
from fedspan.benchmark.spec.settings import How

MOST_LISTED = 200  # listed cells without a result
MOST_RUNS = 200  # per page of a method's seeds
LENGTHS: dict[str, Any] = {
    "most_open": 2,  # first tables whose analysis is unfolded
    "few_parts": 5,  # tables and figures that need no contents list
    "few_lines": 5,  # rows or columns of a table that need no filters
}
MOST_DIGESTS = 12  # of partitions; each run's page has its own
LOST = {"diverged": "diverged", "skipped": "cannot run"}  # display texts of trial statuses


@dataclass(frozen=True)
class Bar:
    """One segment of the progress bar, in thousandths."""

    status: str
    count: int
    start: float
    width: float


@dataclass(frozen=True)
class Extras:
    """Content below a table."""

    analysis: Analysis | None
    targets: Targets | None
    diagrams: tuple[Diagram, ...]


@dataclass(frozen=True)
class Content:
    """What the page of a board shows.

    `runs` are rows of `collect`'s frame, `extras` are by table number, `tuned` the outcomes of a tuned board's studies
    and `families` the methods with a page of their own; `pictured` says whether the site has a link preview.
    """

    runs: pd.DataFrame
    tables: Sequence[Tabulated]
    drawings: Sequence[figures.Drawing]
    extras: Mapping[int, Extras]
    problems: Sequence[str] = ()
    recipe: Sequence[Sourced] = ()
    tuned: Sequence[TunedMethod] = ()
    families: Collection[str] = ()
    pictured: bool = False


def board_page(board: Board, content: Content, root: str, how: How) -> bytes:
    """Return the page of a board; `root` is the relative path to the site's folder.

    `how` names the folders and plugins of the commands.
    """
    frame, extras = content.runs, content.extras
    counts = {status: int((frame["status"] == status).sum()) for status in STATUSES}
    unfinished = frame[frame["status"] != "done"]
    unfinished = unfinished.sort_values("status", key=lambda status: status.map(STATUSES.index), kind="stable")
    return render(
        "board.html.j2", root, "board", board.title, board=board,
        scales=list(dict.fromkeys(frame["scale"])),
        counted_as=names.counted_as,
        counts=counts,
        total=len(frame),
        absent=_absent(frame),
        bars=_bars(counts, len(frame)),
        facts=_facts(frame),
        pictured=content.pictured,
        where=_where(how),
        images=(images := _images(frame.itertuples(index=False))),
        verify_words=_words(images),
        run_words=_words(images, () if board.sweep else {name for part in (board.base, *board.grid) for name in part}),
        tables=[_best_first(board, table, extras[table.number].analysis) for table in content.tables],
        families=content.families,
        without_settings=without_settings,
        slug=slug,
        analyses={number: extra.analysis for number, extra in extras.items()},
        reached={number: extra.targets for number, extra in extras.items()},
        diagrams={number: extra.diagrams for number, extra in extras.items()},
        drawings=[(drawing, [Markup(svg) for svg in figures.inline(drawing)]) for drawing in content.drawings],
        problems=content.problems,
        unfinished=list(unfinished.head(MOST_LISTED).itertuples(index=False)),
        unlisted=max(0, len(unfinished) - MOST_LISTED),
        provenance=provenance(frame.itertuples(index=False)),
        recipe=content.recipe,
        **_of_tuning(content.tuned),
        **LENGTHS,
    )  # fmt: skip


def _of_tuning(tuned: Sequence[TunedMethod]) -> dict[str, Any]:
    """Return what the section on tuning shows."""
    facts = tuning_facts(tuned)
    return {
        "tuned": tuned,
        "common_and_distinct": common_and_distinct(one.task for one in tuned),
        "tune": facts,
        "cost_of_trials": cost_of_trials(facts),
        "sensitivities": [(one, found) for one in tuned if (found := sensitivities(one))],
    }


def _best_first(board: Board, table: Tabulated, analysis: Analysis | None) -> Tabulated:
    """Return a table of methods with its rows in the order of the comparison below it; bounds come last.

    The order of a table that reproduces a paper's remains.
    """
    if analysis is None or board.sources or not {*table.row_axes} <= {"method", TUNING}:
        return table
    order = {standing.row.labels: i for i, standing in enumerate(analysis.standings)}
    rows = sorted(table.rows, key=lambda row: (order.get(row.labels, len(order)), row.bound))
    return replace(table, rows=tuple(rows))


def _where(how: How) -> str:
    """Return the end of a command: where the results are, and the plugin files."""
    return "".join(f" {shlex.quote(word)}" for word in place_words(how))


def runs_pages(
    point: str, planned: PlannedCell, runs: Sequence[Any], ranked: bool, pictured: bool = False
) -> Iterator[tuple[str, bytes]]:
    """Yield file name and content of each page of one method's seeds on one task, with `MOST_RUNS` runs a page.

    `runs` are rows of `collect`'s frame. Method and dataset have pages to link to if the runs have a `ranked` score;
    `pictured` says whether the site has a link preview.
    """
    starts = range(0, len(runs), MOST_RUNS)
    parts = [runs[start : start + MOST_RUNS] for start in starts]
    pages = [f"{point}-{number}.html" if number > 1 else f"{point}.html" for number in range(1, len(parts) + 1)]
    said = [f"{start + 1} to {start + len(part)}" for start, part in zip(starts, parts, strict=True)]
    for name, part in zip(pages, parts, strict=True):
        yield name, _runs_page(planned, part, ranked, pictured, list(zip(pages, said, strict=True)), name)


def _runs_page(
    planned: PlannedCell, runs: Sequence[Any], ranked: bool, pictured: bool, pages: Sequence[tuple[str, str]], name: str
) -> bytes:
    cell, family = planned.cell, family_of(planned)
    task = task_of(planned, scores=next((run.scores for run in runs if run.scores), None))
    shown = [
        {
            "seed": run.seed,
            "status": run.status,
            "reason": run.reason,
            "scores": run.scores,
            "cost": {name: getattr(run, name) for name in (*COSTS, "beside")},
            "key": run.key,
            "command": run.command,
            "badge": run.badge,
            "repeated": run.repeated,
            "stale": run.stale,
        }
        for run in runs
    ]
    return render(
        "runs.html.j2", "../", "runs",
        f"{names.of_method_label(method_name(planned))} on {names.title_of('dataset', cell.dataset.name)}",
        scripts=(),
        pages=pages,
        name=name,
        ranked=ranked,
        pictured=pictured,
        where=_where(How.of(planned.config)),
        family=family,
        family_slug=slug(family),
        method=method_name(planned),
        dataset=cell.dataset.name,
        dataset_slug=slug(cell.dataset.name),
        task=f"{sentence(task)}; protocol {task.protocol}, tested on {FIELDS['tested'](task)}",
        scale=cell.scale,
        runs=shown,
        cost_columns=cost_columns(run["cost"] for run in shown),
        shared=any(run["cost"]["beside"] > 0 for run in shown),
        metrics=_metrics(runs),
        provenance=provenance(runs),
        images=(images := _images(runs)),
        image_words=_words(images),
        spec={name: text(value) for name, value in flat(cell.settings).items() if name != "seed"},
    )  # fmt: skip


def _metrics(runs: Sequence[Any]) -> list[Metric]:
    """Return the metrics that some run has, first that by which methods are compared (`judged`)."""
    found = {
        (stage, name): None
        for run in runs
        for stage, scores in run.scores.items()
        for name in sorted(scores, key="loss".__eq__)
        if scores[name] is not None and "." not in name
    }
    last = next((stage for stage in reversed(STAGES) if any(stage in run.scores for run in runs)), "")
    compared = (last, compared_metric({name: name for stage, name in found if stage == last}))
    return [Metric.of(".".join(pair)) for pair in sorted(found, key=lambda pair: (pair != compared, pair[0] != last))]


def _images(runs: Iterable[Any]) -> dict[str, str]:
    """Return what stands for images that only a digest names, and the setting that tells commands where they are.

    ``{"ARCHIVE": "dataset.source"}`` for datasets that read one, else ``{"FOLDER": "dataset.root"}``.
    """
    found = {}
    for name in dict.fromkeys(run.dataset_name for run in runs if run.what["dataset"].get("content")):
        archive = "source" in defaults_of(plugins("dataset")[name])
        found["ARCHIVE" if archive else "FOLDER"] = f"dataset.{'source' if archive else 'root'}"
    return found


def _words(images: Mapping[str, str], stated: Collection[str] = ()) -> str:
    """Return the end of a command that says where the images are, without the settings that its board states."""
    return "".join(f" {setting}={place}" for place, setting in images.items() if setting not in stated)


def _absent(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """Return name and title of the published datasets that have no runs; none if no other dataset has any.

    The name is empty if a digest names the images, which then are not the published ones.
    """
    begun = set(frame.loc[frame["status"] != "missing", "dataset_name"])
    waiting = frame[~frame["dataset_name"].isin(begun)].drop_duplicates("dataset_name").sort_values("dataset_name")
    rows: list[Any] = list(waiting.itertuples(index=False)) if begun else []
    known = plugins("dataset")
    return [
        ("" if row.what["dataset"].get("content") else row.dataset_name, names.title_of("dataset", row.dataset_name))
        for row in rows
        if issubclass(known.get(row.dataset_name, object), Published)
    ]


def _bars(counts: dict[str, int], total: int) -> list[Bar]:
    bars, start = [], 0.0
    for status, count in counts.items():
        if count:
            width = 1000 * count / total
            bars.append(Bar(status=status, count=count, start=round(start, 2), width=round(width, 2)))
            start += width
    return bars


def _facts(frame: pd.DataFrame) -> list[tuple[str, str]]:
    done = frame[frame["status"] == "done"]
    seeds = frame["seed"].nunique()
    facts = [("Finished", f"{len(done)} of {len(frame)}"), ("Seeds", str(seeds))]
    if len(done):
        facts += [
            ("Repeated", _repeated(frame)),
            _time(done),
            ("Compute in all", flops_text(float(done["flops"].sum()))),
        ]
        if done["memory_bytes"].notna().any():
            facts.append(("Largest memory of a step", bytes_text(float(done["memory_bytes"].max()))))
    return facts


def _time(done: pd.DataFrame) -> tuple[str, str]:
    known = done["seconds"].dropna()
    whose = "in all" if len(known) in (0, len(done)) else f"of {names.counted_as(len(known), 'run')}"
    return f"Time {whose}", seconds_text(float(known.sum())) if len(known) else "unknown"


def _repeated(frame: pd.DataFrame) -> str:
    """Return how many records somebody repeated, and how many could not be repeated."""
    states = Counter(badge.state for badge, text in zip(frame["badge"], frame["repeated"], strict=True) if text)
    refuted = states["refuted"] + states["mixed"]
    said = f"{states['repeated']} of {states.total()} records"
    return f"{said}; {refuted} could not be reproduced on some machine" if refuted else said


def provenance(runs: Iterable[Any]) -> list[tuple[str, list[tuple[str, int]]]]:
    """Return the provenance of the numbers: each value with its number of records, usually most frequent first.

    `runs` are rows of `collect`'s frame. Versions and components are sorted by name.
    """
    recorded = [run for run in runs if run.status != "missing"]

    def known(name: str) -> list[str]:
        return [value for run in recorded if isinstance(value := getattr(run, name), str)]

    datasets = [f"{run.dataset_name} {run.dataset_digest}" for run in recorded if isinstance(run.dataset_digest, str)]
    versions = [f"{name} {version}" for run in recorded for name, version in run.versions]
    components = [f"{name} {digest}" for run in recorded for name, digest in run.sources]
    found = [
        ("Machine", _counted(known("device"))),
        ("Versions", _counted(versions, by_name=True)),
        ("Dataset digest", _counted(datasets)),
        ("Partition digest", _counted(known("partition_digest"))[:MOST_DIGESTS]),
        ("Components", _counted(components, by_name=True)),
        ("Git commit", _counted(known("git_commit"))),
        ("Uncommitted sources", _counted(filter(None, known("uncommitted")))),
        ("Sources", _counted(filter(None, known("stale")))),
        ("Repeated", _counted(filter(None, known("repeated")))),
        ("Sample", [(f"{text}: {outcome}", 1) for text, outcome in samples(run.badge for run in recorded)]),
        ("Record schema", _counted(known("schema"))),
    ]
    return [(name, values) for name, values in found if values]


def _counted(values: Iterable[str], by_name: bool = False) -> list[tuple[str, int]]:
    counts = Counter(values)
    return sorted(counts.items(), key=lambda item: item[0] if by_name else (-item[1], item[0]))


def cost_of_trials(facts: Mapping[str, Any]) -> str:
    """Return a sentence on how many trials of `tuning_facts` ran, and their cost."""
    trials, cost = facts["trials"], facts["cost"]
    if not cost.ran:
        return f"None of the {names.counted_as(trials, 'trial')} has run yet."
    all_ran = cost.ran == trials
    said = (
        f"{names.counted_as(trials, 'trial')} took" if all_ran else f"{cost.ran} of {trials} trials have run and took"
    )
    time = f"{seconds_text(cost.seconds)} of one processor" if cost.known else "an unknown time"
    if cost.partial:
        time = f"at least {time}, known for {cost.known} of them"
    lost = "".join(f"; {facts[what]} {word}" for what, word in LOST.items() if facts[what])
    return f"{said} {time}{lost}."
