"""Results of each method on each task of a board, small enough for pages over all boards.

Boards label a method only by what varies on them, so results carry their own names: a method by its components and
their non-default settings, a task by everything that all methods share on it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pandas as pd
from msgspec import Meta

from fedspan.benchmark.errors import CorruptFile
from fedspan.benchmark.fields import defaults_of
from fedspan.benchmark.protocol import OF_THE_TASK
from fedspan.benchmark.records.atomic import read_json
from fedspan.benchmark.records.model import STAGES, Count, Finite, Key, Number, Percent, Share, accuracy_of
from fedspan.benchmark.records.record import digest_of
from fedspan.benchmark.registry import prefix_of
from fedspan.benchmark.report import statistics
from fedspan.benchmark.report.axes import TUNED, text, with_setting
from fedspan.benchmark.report.frame import mean_cost
from fedspan.benchmark.report.table import Tabulated
from fedspan.benchmark.report.tuning import Reported
from fedspan.benchmark.spec.board import Board
from fedspan.benchmark.spec.compose import option, tuned
from fedspan.benchmark.spec.plan import PlannedCell
from fedspan.benchmark.spec.presets import preset
from fedspan.benchmark.spec.settings import SCALES
from fedspan.benchmark.task import Partition

FILE = "results.json"
LIMIT_BYTES = 2**28
Stage = Annotated[str, Meta(pattern=f"^({'|'.join(STAGES)}|)$")]
ScaleName = Annotated[str, Meta(pattern=f"^({'|'.join(SCALES)})$")]
Costs = dict[str, Finite | None]  # by name, None where unknown


@dataclass(frozen=True)
class Task:
    """The properties shared by all methods that are compared with each other."""

    dataset: str
    partition: str
    skew: Finite | None  # value of the partition's field `skew_field`: how unequal the clients are
    clients: Number
    participation: Share
    model: str
    protocol: str
    rounds: Number
    local_epochs: Number
    scale: ScaleName
    digest: str  # of the dataset, so that different images are a different task
    skew_field: str = ""
    fleet: str = ""  # empty if every client takes all its steps and arrives
    unseen: Annotated[float, Meta(ge=0, lt=1)] = 0.0  # share of the clients that never train
    tested: Literal["shared", "own"] = "shared"  # own: mean over clients' own test images


@dataclass(frozen=True)
class Result:
    """All seeds of one method on one task: accuracies in percent of `stage`, mean cost (None where unknown).

    `point` names the page of its runs; `family` is the method without its settings; runs of the seeds in `lost`
    diverged and have no accuracy. An `ablation` or a bound competes only at a reader's request; `tuned` results compete
    among those of the same `budget`. `repeated` counts the runs that somebody repeated bit for bit, `refuted` those
    that some machine could not repeat; `machine` is that of all runs, empty if there are several or runs shared theirs.
    """

    point: Key
    family: str
    method: str
    task: Task
    stage: Stage
    seeds: dict[Annotated[str, Meta(pattern="^[0-9]{1,19}$")], Percent]
    asked: Count
    cost: Costs
    lost: tuple[Count, ...] = ()
    ablation: bool = False
    tuned: bool = False
    repeated: Count = 0
    refuted: Count = 0
    machine: str = ""
    budget: str = ""  # of tuned results
    models: dict[str, str] = field(default_factory=dict)  # by seed, digests of the scored models where known
    partitions: dict[str, str] = field(default_factory=dict)  # by seed, digests of the images of the clients

    @property
    def diverged(self) -> int:
        """The number of diverged runs."""
        return len(self.lost)

    @cached_property
    def mean(self) -> float:
        """The mean over the seeds with an accuracy, NaN if all diverged."""
        return statistics.mean_of(self.seeds.values())

    @cached_property
    def compared(self) -> float:
        """The value compared on a task: the mean, or minus infinity if a run diverged."""
        return statistics.mean_of(self.outcomes.values())

    @property
    def std(self) -> float | None:
        """The sample standard deviation, None for fewer than two seeds."""
        if len(self.seeds) < 2:
            return None
        mean = self.mean
        return math.sqrt(math.fsum((value - mean) ** 2 for value in self.seeds.values()) / (len(self.seeds) - 1))

    @property
    def outcomes(self) -> dict[int, float]:
        """The accuracy of each seed, minus infinity if it diverged."""
        return {int(seed): value for seed, value in self.seeds.items()} | dict.fromkeys(
            self.lost, statistics.diverged_score(+1)
        )


@dataclass(frozen=True)
class TableNumber:
    """One number of one table: `row` and `column` map axes to labels; `rank` is the rank in its column.

    Entries with `diverged` runs rank behind all others, and `mean` is None if they have no other runs. `difference` is
    ours minus `printed` if both are at the papers' scale. `cost` is the mean over runs, None where unknown; `keys` are
    those of the runs with a record.
    """

    table: int
    title: str
    metric: str
    row: dict[str, str]
    column: dict[str, str]
    mean: Finite | None
    std: Finite | None
    n: Count
    asked: Count
    rank: Finite | None
    printed: Finite | None
    difference: Finite | None
    cost: Costs
    point: Key
    keys: tuple[Key, ...]
    diverged: Count = 0


@dataclass(frozen=True)
class Summary:
    """One page of a board: its description, its path in the site, its results, and the numbers of its tables.

    `studies` are rows of `report.tuning.outcomes_frame`, with None for unknown numbers. `own` tells that the board is
    outside the folders of boards.
    """

    board: str
    title: str
    description: str
    scale: str
    page: str
    counts: dict[str, Count]
    results: tuple[Result, ...]
    entries: tuple[TableNumber, ...]
    studies: tuple[dict[str, Any], ...] = ()
    own: bool = False

    @property
    def pictured(self) -> bool:
        """Whether the overview ranks a result of it, and so has a picture for the links of its pages."""
        return any(not (result.ablation or result.tuned) for result in self.results)


def summarise(
    board: Board,
    reported: Reported,
    frame: pd.DataFrame,
    tables: Sequence[Tabulated],
    page: str,
) -> Summary:
    """Return the summary of a board's page; `frame` is that of `collect` for the reported cells.

    Trials are left out: their scores are not results. A method's tuned results have a separate name, the same on all
    tasks whatever was chosen.
    """
    cells = reported.named
    tuning = reported.tuning or ("",) * len(cells)
    searched, budgets = reported.searched or (frozenset(),) * len(cells), reported.budgets or ("",) * len(cells)
    groups: dict[tuple[str, str, frozenset[str], str], list[Any]] = {}
    rows = zip(frame.itertuples(index=False), tuning, searched, budgets, strict=True)
    for planned, (row, how, names, budget) in zip(cells, rows, strict=True):
        if row.status in ("done", "diverged", "failed", "missing") and not planned.cell.protocol.trial:
            groups.setdefault((str(row.point), how, names, budget), []).append((planned, row))
    results = [found for what, runs in groups.items() for found in _results(runs, *what)]
    once = frame.drop_duplicates("key")  # runs are in two rows if a study chose the defaults
    return Summary(
        board=board.name,
        title=board.title,
        description=board.description,
        scale=", ".join(dict.fromkeys(planned.cell.scale for planned in cells)),
        page=page,
        counts={str(status): int(count) for status, count in once["status"].value_counts().sort_index().items()},
        results=tuple(_on_common_tasks(results)),
        entries=tuple(entry for table in tables if table.of_runs for entry in _entries(table)),
        own=board.own,
    )


def _on_common_tasks(results: Sequence[Result]) -> list[Result]:
    """Return the results with one kind of test images per task: the shared ones if any result was scored on them."""
    shared = {one.task for one in results if one.task.tested == "shared"}
    as_shared = [replace(one, task=replace(one.task, tested="shared")) for one in results]
    return [found if found.task in shared else one for one, found in zip(results, as_shared, strict=True)]


def _entries(table: Tabulated) -> Iterator[TableNumber]:
    better = table.metric.better
    for i, column in enumerate(table.columns):
        known = [(row, entry) for row in table.rows if (entry := row.entries[i]) and entry.outcomes(+1)]
        values = [better * statistics.mean_of(entry.outcomes(better).values()) for _, entry in known] if better else []
        competing: dict[str, list[float]] = {}  # by kind: tuned rows among themselves
        for value, (row, _) in zip(values, known, strict=False):
            if not row.bound:
                competing.setdefault(table.kind(row), []).append(value)
        for number, (row, entry) in enumerate(known):
            yield TableNumber(
                table=table.number,
                title=table.title,
                metric=table.metric.path,
                row=dict(zip(table.row_axes, row.labels, strict=True)),
                column=dict(zip(table.column_axes, column, strict=True)),
                mean=entry.mean,
                std=entry.std,
                n=entry.n,
                asked=entry.asked,
                rank=statistics.position(values[number], competing[table.kind(row)])
                if better and not row.bound
                else None,
                printed=entry.printed.printed.value if entry.printed else None,
                difference=entry.printed.difference if entry.printed else None,
                cost={name: value if math.isfinite(value) else None for name, value in entry.cost.items()},
                point=entry.point,
                keys=tuple(run.key for run in entry.runs if run.status != "missing"),
                diverged=entry.diverged,
            )


def _results(
    runs: Sequence[tuple[PlannedCell, Any]], point: str, tuning: str, searched: frozenset[str], budget: str
) -> Iterator[Result]:
    """Yield the results of a method on a task, one for each dataset digest and stage among its runs."""
    planned = runs[0][0]
    rows = [(str(row.dataset_digest or "")[:12], *_judged(row.scores), row) for _, row in runs]
    done = [(digest, stage, accuracy, row) for digest, stage, accuracy, row in rows if accuracy is not None]
    lost = [(digest, row) for digest, *_, row in rows if row.status == "diverged"]
    kinds = dict.fromkeys((digest, stage) for digest, stage, *_ in done)
    kinds |= {(digest, ""): None for digest, _ in lost if not any(known == digest for known, _ in kinds)}
    for digest, stage in kinds:
        found = [(accuracy, row) for *kind, accuracy, row in done if kind == [digest, stage]]
        mine, gone = [row for _, row in found], [row for known, row in lost if known == digest]
        machines = {row.device if row.beside == 0 else "" for row in mine}
        yield Result(
            point=point,
            family=family_of(planned),
            method=method_name(planned, searched) + (f", {tuning}" if tuning == TUNED else ""),
            task=task_of(planned, digest, mine[0].scores if mine else None),
            stage=stage,
            seeds={str(row.seed): accuracy for accuracy, row in found},
            asked=len(runs),
            cost={name: value if math.isfinite(value) else None for name, value in mean_cost(mine).items()},
            lost=tuple(int(row.seed) for row in gone),
            ablation=all(one.ablation or one.cell.bound for one, _ in runs),
            tuned=tuning == TUNED,
            budget=budget,
            repeated=sum(row.badge.state == "repeated" for row in mine),
            refuted=sum(row.badge.state in ("refuted", "mixed") for row in mine),
            machine=str(machines.pop() or "") if len(machines) == 1 else "",
            models={str(row.seed): digest_of({"": row.models})[:12] for row in mine if row.models},
            partitions={str(row.seed): str(row.partition_digest)[:12] for row in [*mine, *gone]},
        )


def _judged(scores: Mapping[str, Mapping[str, Any]]) -> tuple[str, float | None]:
    """Return the last stage with an accuracy for comparisons, and that accuracy; ("", None) without one."""
    found = ((stage, accuracy_of(scores.get(stage, {}))) for stage in reversed(STAGES))
    return next(((stage, float(accuracy)) for stage, accuracy in found if accuracy is not None), ("", None))


def _own_images(planned: PlannedCell, scores: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether clients have their own test images, judged by a global model's scores, else by the partition."""
    for of_stage in (scores.get(stage, {}) for stage in STAGES):
        if of_stage.get("accuracy") is not None:
            return of_stage.get("client_accuracy") is not None
    return type(planned.cell.partition).assign is not Partition.assign


def task_of(planned: PlannedCell, digest: str = "", scores: Mapping[str, Mapping[str, Any]] | None = None) -> Task:
    """Return the task of a cell; `digest` is the dataset's, `scores` are those of one run, by stage."""
    cell, field = planned.cell, planned.cell.partition.skew_field
    skew = float(getattr(cell.partition, field)) if field else None
    return Task(
        dataset=cell.dataset.label(),
        partition=_with_skew(cell.partition.label(), field, skew),
        skew=skew,
        clients=cell.clients,
        participation=cell.participation,
        model=cell.model.label(),
        protocol=str(planned.overrides.get("protocol", "default")),
        rounds=cell.protocol.rounds,
        local_epochs=cell.protocol.local_epochs,
        scale=cell.scale,
        digest=digest,
        skew_field=field,
        fleet=cell.fleet.label() if cell.fleet.acts else "",
        unseen=cell.unseen,
        tested="own" if _own_images(planned, scores or {}) else "shared",
    )


def _with_skew(label: str, field: str, skew: float | None) -> str:
    """Return a partition's label with its skew, which matters even at its default."""
    if skew is None or f"{field}=" in label:
        return label
    return with_setting(label, field, text(skew))


def family_of(planned: PlannedCell) -> str:
    """Return the method's name without settings: its components' names."""
    return " + ".join(component.name for component in planned.cell.components)


def method_name(planned: PlannedCell, searched: Collection[str] = ()) -> str:
    """Return the method's name with its settings, except searched ones and values that the protocol implies.

    A protocol implies its tuned value of a setting, or else the default: where it tunes a setting, the default shows.
    """
    cell, expected = planned.cell, _tuned(planned)
    names = []
    for component in cell.components:
        prefix = prefix_of(component)
        defaults = defaults_of(type(component))
        shown = [
            f"{field}={text(value)}"
            for field, value in component.what().items()
            if field in defaults
            and f"{prefix}.{field}" not in searched
            and text(value) != text(expected.get(f"{prefix}.{field}", defaults[field]))
        ]
        names.append(f"{component.name}({', '.join(shown)})" if shown else component.name)
    usual = option("protocol", str(planned.overrides.get("protocol", "default")))
    changed = [
        f"{field}={text(value)}"
        for field, value in cell.what["protocol"].items()
        if field in usual
        and field not in OF_THE_TASK
        and f"protocol.{field}" not in searched
        and text(value) != text(expected.get(f"protocol.{field}", usual[field]))
    ]
    return " + ".join(names) + (f", {', '.join(changed)}" if changed else "")


def _tuned(planned: PlannedCell) -> dict[str, Any]:
    """Return the settings that the cell's protocol tunes for its method, whatever values the cell itself gives them."""
    rules = preset(str(planned.overrides.get("protocol", "default"))).tuned
    own = {"seed"}.union(*(rule.set for rule in rules))
    return _tuned_for(json.dumps({key: v for key, v in planned.overrides.items() if key not in own}, sort_keys=True))


@cache
def _tuned_for(overrides: str) -> dict[str, Any]:
    return tuned(json.loads(overrides))


def to_json(summary: Summary) -> str:
    """Return a summary as JSON with a digest; the same records give the same text."""
    content = asdict(summary)
    return json.dumps({**content, "digest": digest_of(content)}, ensure_ascii=False, separators=(",", ":")) + "\n"


def read(path: Path) -> Summary:
    """Return the summary in a file of the site; raise `CorruptFile` if unreadable, altered or of another version."""
    try:
        raw = read_json(path, dict[str, Any], LIMIT_BYTES)
        digest = raw.pop("digest", None)
        found = msgspec.convert(raw, Summary)
    except OSError as error:
        raise CorruptFile(error.strerror or str(error)) from error
    except (ValueError, OverflowError, RecursionError) as error:
        raise CorruptFile(str(error)) from error
    if digest != digest_of(asdict(found)):
        raise CorruptFile("its digest does not match: another version wrote it, or it was changed")
    return found
