"""Pages over all boards: an overview with the overall ranking, a page per method and dataset, and a comparison."""

from __future__ import annotations

import inspect
import itertools
import logging
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

import msgspec

from fedspan.benchmark import names
from fedspan.benchmark.bibliography import Paper, papers_of, suite
from fedspan.benchmark.errors import CorruptFile
from fedspan.benchmark.fields import defaults_of
from fedspan.benchmark.method import disclosure
from fedspan.benchmark.records.atomic import content_of, read_json
from fedspan.benchmark.records.model import STAGES
from fedspan.benchmark.registry import plugins, prefix
from fedspan.benchmark.report import preview, statistics
from fedspan.benchmark.report.axes import TUNED, text, without_settings
from fedspan.benchmark.report.figures import embed
from fedspan.benchmark.report.overall import (
    RELATIVE_COSTS,
    Comparisons,
    cost_of,
    costs_of,
    merged,
    verdict,
    with_names,
)
from fedspan.benchmark.report.overview import FIELDS, FILTERS, Overview, carried, choice, sentence
from fedspan.benchmark.report.pages import embedded, render, slug
from fedspan.benchmark.report.statistics import Difference
from fedspan.benchmark.report.summary import FILE, Result, Summary, Task, read
from fedspan.benchmark.report.units import CostColumn, cost_columns
from fedspan.benchmark.spec.settings import SCALES

log = logging.getLogger("fedspan")

PICTURE_BYTES = 2**24
PARTITIONS = "partitions"  # folder of their pictures
MOST_PICTURES = 12  # on the page of a dataset
MOST_LINES = 300  # on the page of a method; the overview shows all
COST_UNITS = (1.0, 1e9, 1e3)  # of RELATIVE_COSTS in page data, which serves only for ratios


class Caption(msgspec.Struct):
    """Title and description stored beside the picture of a partition."""

    title: str
    words: str


def summaries_in(out: Path) -> list[Summary]:
    """Return the summaries of earlier reports in a site, by board and scale; skip invalid files with a warning."""
    summaries = []
    for path in sorted(out.glob(f"**/{FILE}")):
        try:
            summary = read(path)
            if out / summary.page != path.parent:
                raise CorruptFile(f"it is of the page {summary.page}")
            summaries.append(summary)
        except CorruptFile as error:
            log.warning("%s is passed over: %s; 'fedspan report' writes it again", path, error)
    return summaries


def pages(out: Path, summaries: Sequence[Summary], without: Sequence[tuple[str, str]] = ()) -> dict[Path, bytes]:
    """Return the files of the pages over all boards.

    `without` are name and title of boards without results. The same summaries give the same bytes.
    """
    site = _Site(merged(summaries))
    files = {out / "index.html": site.overview(summaries, without), out / "compare.html": site.compare()}
    if site.view and site.pictured:
        files[out / preview.FILE] = preview.preview(site.view)
    for family in site.families:
        files[out / "methods" / f"{slug(family)}.html"] = site.method(family)
    for name in site.datasets:
        files[out / "datasets" / f"{slug(name)}.html"] = site.dataset(name, out / PARTITIONS)
    return files


@dataclass(frozen=True)
class About:
    """A plugin's description of itself."""

    name: str
    kind: str
    prefix: str
    paragraphs: tuple[str, ...]
    fields: tuple[tuple[str, str], ...]
    title: str = ""
    papers: tuple[Paper, ...] = ()


def about(kind: str, name: str) -> About:
    """Return the docstring and settings of a plugin, or a note that it is not installed here."""
    cls = plugins(kind).get(name)
    if cls is None:
        return About(name, kind, "", paragraphs=("This machine does not have it.",), fields=(), title=name)
    parts = re.split(r"\n\s*\n|\n(?=- )", inspect.getdoc(cls) or "")
    paragraphs = [" ".join(part.split()) for part in parts]
    if more := disclosure(cls):
        paragraphs.append(f"{more[0].upper()}{more[1:]}.")
    return About(
        name=name,
        kind=kind,
        prefix=prefix(kind, name),
        paragraphs=tuple(paragraphs),
        fields=tuple((field, text(value)) for field, value in defaults_of(cls).items()),
        title=names.title_of(kind, name),
        papers=papers_of(cls),
    )


@dataclass(frozen=True)
class MethodLine:
    """One result on the page of a method, with the rank of its mean among the task's `field` competing results.

    Tuned results compete among themselves. The rank is None for an ablation or a bound, which does not compete.
    """

    result: Result
    rank: float | None
    field: int

    @property
    def task(self) -> str:
        """The task in words."""
        return sentence(self.result.task)

    @property
    def filters(self) -> tuple[str, ...]:
        """The value for each filter of the page."""
        task = self.result.task
        said = (FIELDS[name](task) for name in ("dataset", "partition", "clients", "fleet", "model"))
        return (names.of_method_label(self.result.method), *said, task.scale)

    def cost(self, column: CostColumn) -> float:
        """Return a cost, NaN if unknown."""
        return cost_of(self.result, column)

    def cost_text(self, column: CostColumn) -> str:
        """Return a cost as text, seconds with their spread."""
        return column.text(costs_of(self.result))


@dataclass(frozen=True)
class TaskLine:
    """One task on the page of a dataset."""

    task: Task
    methods: int
    best: Result  # among results with the defaults, if there are any
    best_tuned: Result | None

    @property
    def label(self) -> str:
        """The task in words."""
        return sentence(self.task)

    @property
    def filters(self) -> tuple[str, ...]:
        """The value for each filter of the page."""
        task = self.task
        fleet, model = (FIELDS[name](task) for name in ("fleet", "model"))
        return (FIELDS["partition"](task), text(task.skew), str(task.clients), fleet, model, task.scale)


class _Site:
    """All results, in the order of the pages."""

    def __init__(self, results: Sequence[Result]) -> None:
        self.results = results
        self.tasks = list(dict.fromkeys(result.task for result in results))
        self.comparisons = Comparisons(results)
        self.methods = self.comparisons.methods
        self.rankings = Overview(results, self.comparisons)
        self.family = {result.method: result.family for result in results}
        self.families = sorted(set(self.family.values()))
        self.machines = ["", *sorted({result.machine for result in results} - {""})]
        self.datasets = sorted({without_settings(task.dataset) for task in self.tasks})
        self.scales = [scale for scale in SCALES if any(task.scale == scale for task in self.tasks)]
        self.view = self.rankings.opening_view
        self.pictured = bool(self.view and self.view.lines)  # whether pages have a picture for their links
        self.by_task: dict[Task, list[Result]] = {}
        for result in results:
            self.by_task.setdefault(result.task, []).append(result)

    def overview(self, summaries: Sequence[Summary], without: Sequence[tuple[str, str]]) -> bytes:
        counted = Counter(result.family for result in self.results)
        tasks = Counter(without_settings(task.dataset) for task in self.tasks)
        return render(
            "overview.html.j2",
            "",
            "overview",
            "Leaderboard",
            scripts=("tables.js", "site.js", "overview.js"),
            view=self.view,
            pictured=self.pictured,
            carried=carried,
            filter_fields=self._filters(),
            variants=self.rankings.variants,
            boards=summaries,
            without=without,
            methods=[
                (names.of_method_label(name), slug(name), names.counted_as(counted[name], "result"))
                for name in self.families
            ],
            datasets=[
                (names.title_of("dataset", name), slug(name), names.counted_as(tasks[name], "task"))
                for name in self.datasets
            ],
            bibtex=suite(),
            data=embedded(self._data() | self.rankings.data()),
        )

    def _filters(self) -> list[tuple[str, str]]:
        """Return fields and labels of the filters; the skew has the partitions' name for it if they share one."""
        called = {task.skew_field for task in self.tasks if task.skew_field}
        skew = called.pop().capitalize() if len(called) == 1 else "Skew"
        return [(name, skew if name == "skew" else label) for name, label in FILTERS]

    def compare(self) -> bytes:
        pairs, assumes = self._pairs()
        scores = [
            {**{seed: carried(score) for seed, score in result.seeds.items()}, **dict.fromkeys(result.lost)}
            for result in self.results
        ]
        more = {"scores": scores, "pairs": pairs, "assumes": assumes, "opening": self._opening()}
        return render(
            "compare.html.j2",
            "",
            "compare",
            "Compare two methods",
            scripts=("tables.js", "site.js", "compare.js"),
            filter_fields=self._filters(),
            variants=[],
            pictured=self.pictured,
            data=embedded(self._data() | more | {"first": {"scale": self.rankings.scale}}),
        )

    def _opening(self) -> list[int]:
        """Return the two methods that the comparison opens with: the first and the reference of the leaderboard.

        Other methods replace them if they are equal or missing; a single method is compared with itself.
        """
        view = self.view
        ranked = [*(line.method for line in view.lines[:1]), view.reference] if view else []
        order = {name: i for i, name in enumerate(self.methods)}
        opening = list(dict.fromkeys(order[name] for name in (*ranked, *self.methods) if name in order))
        return (opening * 2 if len(opening) == 1 else opening)[:2]

    def method(self, family: str) -> bytes:
        """Return the page of a method in all its settings."""
        mine = [result for result in self.results if result.family == family]
        lines = [
            self._line(result) for result in sorted(mine, key=lambda result: (result.method, *_order(result.task)))
        ]
        algorithm, *addons = family.split(" + ")
        components = [about("algorithm", algorithm), *(about("addon", name) for name in addons)]
        return render(
            "method.html.j2", "../", "method", names.of_method_label(family),
            family=family, placed=self.rankings.lines_of(family), components=components,
            rows=lines[:MOST_LINES], left=len(lines) - MOST_LINES,
            against=list(self._against(family)), pictured=self.pictured,
            cost_columns=cost_columns(costs_of(line.result) for line in lines[:MOST_LINES]),
        )  # fmt: skip

    def _line(self, result: Result) -> MethodLine:
        values = [o.compared for o in self.by_task[result.task] if o.tuned == result.tuned and not o.ablation]
        return MethodLine(
            result, None if result.ablation else statistics.position(result.compared, values), len(values)
        )

    def _against(self, family: str) -> Iterator[str]:
        """Yield the verdict on a method with add-ons against its base, by setting and scale."""
        mine = dict.fromkeys(result.method for result in self.results if result.family == family)
        for method, scale in itertools.product(mine, self.scales):
            if found := self.comparisons.over_base(method, self._at(scale)):
                base, gap = found
                one, other = names.of_method_label(method), names.of_method_label(base)
                said = f"{one} against {other} (scale {scale}): {with_names(verdict(gap), one, other)}"
                yield f"{said} {gap.assumes if isinstance(gap, Difference) else ''}".strip()

    def _at(self, scale: str) -> frozenset[Task]:
        return frozenset(task for task in self.tasks if task.scale == scale)

    def dataset(self, name: str, pictures: Path) -> bytes:
        """Return the page of a dataset; `pictures` is the folder of the pictures of partitions."""
        tasks = sorted((task for task in self.tasks if without_settings(task.dataset) == name), key=_order)
        rows = [_task_line(task, self.by_task[task]) for task in tasks]
        return render(
            "dataset.html.j2", "../", "dataset", names.title_of("dataset", name), skew=dict(self._filters())["skew"],
            pictured=self.pictured, dataset=name, about=[about("dataset", name)], rows=rows,
            pictures=list(_pictures(name, pictures)),
            choices=list(dict.fromkeys((task.dataset, task.scale) for task in tasks)),
        )  # fmt: skip

    def _data(self) -> dict[str, Any]:
        """Return the results in the format of the pages' script."""
        methods = {name: i for i, name in enumerate(self.methods)}
        tasks = {task: i for i, task in enumerate(self.tasks)}
        return {
            "methods": [[name, slug(self.family[name]), names.of_method_label(name)] for name in self.methods],
            "tasks": [[*(choice(task, name) for name, _ in FILTERS), sentence(task)] for task in self.tasks],
            "says": {
                name: {choice(task, name): FIELDS[name](task) for task in self.tasks}
                for name in ("dataset", "partition", "fleet", "tested", "model")
            },
            "scales": self.scales,
            "stages": list(STAGES),
            "results": [self._packed(methods[result.method], tasks[result.task], result) for result in self.results],
        }

    def _packed(self, method: int, task: int, result: Result) -> list[Any]:
        """Return a result as a list without trailing zeros."""
        costs = [cost_of(result, column) / unit for column, unit in zip(RELATIVE_COSTS, COST_UNITS, strict=True)]
        packed: list[Any] = [
            method,
            task,
            carried(result.mean) if result.seeds else None,
            None if result.std is None else carried(result.std),
            len(result.seeds),
            result.asked,
            *(_brief(cost) for cost in costs),
            STAGES.index(result.stage) if result.stage else -1,
            result.point,
            result.diverged,
            int(result.ablation),
            int(result.tuned),
            result.repeated,
            result.refuted,
            self.machines.index(result.machine),
        ]
        while packed[-1] == 0:
            packed.pop()
        return packed

    def _pairs(self) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """Return scale -> ``i-j`` -> [verdict on two methods, index of its assumptions], and all assumptions."""
        assumes = ["", statistics.SAMPLED_TASKS, statistics.FIXED_TASKS]
        pairs: dict[str, dict[str, Any]] = {}
        for scale in self.scales:
            tasks, mine = self._at(scale), pairs.setdefault(scale, {})
            for (i, one), (j, other) in itertools.combinations(enumerate(self.methods), 2):
                if gap := self.comparisons.gap(one, other, tasks):
                    assumed = gap.assumes if isinstance(gap, Difference) else ""
                    mine[f"{i}-{j}"] = [verdict(gap), assumes.index(assumed)]
        return pairs, assumes


def _brief(cost: float) -> float | None:
    """Return a cost as stored in pages, with six digits; None if unknown."""
    if not math.isfinite(cost):
        return None
    value = float(f"{cost:.6g}")
    return int(value) if value.is_integer() else value


def _order(task: Task) -> tuple[Any, ...]:
    place = SCALES.index(task.scale), task.dataset, math.inf if task.skew is None else task.skew
    return (*place, task.partition, task.clients, sentence(task), task.protocol, task.tested, task.digest)


def _task_line(task: Task, results: Sequence[Result]) -> TaskLine:
    default, tuned = ([result for result in results if result.tuned == how] for how in (False, True))
    methods = {result.method.removesuffix(f", {TUNED}") for result in results}
    return TaskLine(task, len(methods), _best(default or tuned), _best(tuned) if default and tuned else None)


def _best(results: Sequence[Result]) -> Result:
    """Return the result with the highest mean; an ablation or a bound only if there is nothing else.

    One with a diverged run is only returned if each has one.
    """
    return max(results, key=lambda result: (not result.ablation, result.compared, result.mean if result.seeds else 0.0))


def _pictures(name: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield title and HTML element of each picture of a dataset's partitions."""
    for path in sorted(folder.glob(f"{slug(name)}.*.json"))[:MOST_PICTURES]:
        try:
            said = read_json(path, Caption, PICTURE_BYTES)
            svg = content_of(path.with_suffix(".svg"), PICTURE_BYTES).decode()
            element = embed(svg, path.stem.replace(".", "-"), said.title, said.words)
        except (CorruptFile, OSError, UnicodeDecodeError, ParseError) as error:
            log.warning("%s is passed over: %s; remove it, and 'fedspan report' writes it again", path, error)
            continue
        yield said.title, element
