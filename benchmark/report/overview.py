"""The first page's ranking over all boards, for each choice of tasks that its filters allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedspan.benchmark import names
from fedspan.benchmark.report import forest
from fedspan.benchmark.report.axes import TUNED
from fedspan.benchmark.report.headline import headline, split
from fedspan.benchmark.report.overall import Comparisons, Ranked, choices
from fedspan.benchmark.report.pages import place_text, slug
from fedspan.benchmark.report.ranking import Place
from fedspan.benchmark.report.statistics import Difference, Withheld
from fedspan.benchmark.report.summary import Result, Task
from fedspan.benchmark.report.units import rounded
from fedspan.benchmark.spec.compose import default_choices
from fedspan.benchmark.spec.settings import SCALES

MOST_COLUMNS = 4  # tasks with their own column
HEAD = 4  # numbers of a packed row before its gain: method, place, both ends of the range
DIGITS = 5  # decimals of the means in pages
FIELDS: Mapping[str, Callable[[Task], str]] = {
    "dataset": lambda task: names.of_label("dataset", task.dataset),
    "clients": lambda task: names.counted_as(task.clients, "client"),
    "partition": lambda task: names.of_partition_label(task.partition),
    "model": lambda task: names.of_label("model", task.model),
    "participation": lambda task: "" if task.participation == 1 else f"{names.percent(task.participation)} a round",
    "fleet": lambda task: names.of_label("fleet", fleet_of(task)),
    "unseen": lambda task: f"{names.percent(task.unseen)} of the clients unseen" if task.unseen else "",
    "rounds": lambda task: names.counted_as(task.rounds, "round"),
    "local_epochs": lambda task: names.counted_as(task.local_epochs, "local epoch"),
    "protocol": lambda task: task.protocol,
    "tested": lambda task: "each client's own images" if task.tested == "own" else "all test images",
}
FILTERS = [
    ("dataset", "Dataset"),
    ("partition", "Partition"),
    ("skew", "Skew"),
    ("clients", "Clients"),
    ("fleet", "Fleet"),
    ("unseen", "Unseen clients"),
    ("tested", "Tested on"),
    ("model", "Model"),
    ("scale", "Scale"),
]
OPENING = ("scale", "dataset", "tested")  # fields whose filters are set when the page opens
SUMMARY_FIELDS = ("dataset", "clients", "partition", "model", "rounds")  # named for tasks that share them
SMOKE = ". At the scale smoke, the numbers only show that everything works"
OPTIONAL_FIELDS = ("fleet", "unseen")  # named only for tasks that set them


def sentence(task: Task) -> str:
    """Return a task in words: ``CIFAR-10 (5,000 images), 10 clients, alpha 0.05, ConvNet (batch norm), 8 rounds``."""
    parts = [FIELDS[name](task) for name in SUMMARY_FIELDS]
    if task.participation != 1:
        parts[1] += f" ({names.percent(task.participation)} a round)"
    if task.local_epochs != 1:
        parts[-1] += f" of {task.local_epochs} epochs"
    return ", ".join([*parts, *(FIELDS[name](task) for name in OPTIONAL_FIELDS if getattr(task, name))])


def choice(task: Task, name: str) -> Any:
    """Return a task's value of a filter field."""
    if name == "unseen":
        return names.percent(task.unseen) if task.unseen else "none"
    return fleet_of(task) if name == "fleet" else getattr(task, name)


def fleet_of(task: Task) -> str:
    """Return the label of a task's fleet, or of the default one if it names none."""
    return task.fleet or default_choices()["fleet"]


def short_names(tasks: Sequence[Task]) -> dict[Task, str]:
    """Return for each task a name that distinguishes it from the others of its scale and dataset."""
    found = {}
    for task in tasks:
        peers = [other for other in tasks if (other.scale, other.dataset) == (task.scale, task.dataset)]
        varying = [name for name, write in FIELDS.items() if len({write(peer) for peer in peers}) > 1]
        if varying != ["tested"]:  # beside others it is redundant: one of them gives clients their own test images
            varying = [name for name in varying if name != "tested"]
        found[task] = ", ".join(filter(None, (FIELDS[name](task) for name in varying))) or FIELDS["dataset"](task)
    return found


def as_written(gain: Difference) -> tuple[float, float, float]:
    """Return a gain and the ends of its interval as the page writes them, so that its picture agrees with the text."""
    return rounded(gain.mean, 1), rounded(gain.low, 1), rounded(gain.high, 1)


def carried(value: float) -> float:
    """Return a mean or deviation as stored in pages, so that the page and its script round the same number."""
    return round(value, DIGITS)


@dataclass(frozen=True)
class Line:
    """One method's row in the table; texts are empty if there is nothing to say."""

    method: str
    slug: str
    name: str
    note: str
    place: Place
    several: bool  # whether groups of methods share no task: a place then names its group
    gain: tuple[float, float, float] | None  # mean, low, high, in points with one decimal
    why: str  # reason for a withheld gain
    mean: float
    runs: int  # that the mean counts
    scores: tuple[Result | None, ...]
    costs: tuple[float, ...]
    repeated: str

    @property
    def place_text(self) -> str:
        """The place, with the letter of its group if there are several."""
        return place_text(self.place, self.several)

    @property
    def range(self) -> str:
        """The places compatible with the runs; empty if undecided or no more than the place itself."""
        return self.place.range if self.place.tested and self.place.range != self.place.text else ""


@dataclass(frozen=True)
class View:
    """The ranking for one choice of tasks, best first, with the sentences above it."""

    headline: str
    more: str
    about: str
    tuned: bool
    reference: str
    columns: tuple[Task, ...]
    headings: tuple[str, ...]
    lines: tuple[Line, ...]

    @property
    def most_runs(self) -> int:
        """The largest number of runs that a row's mean counts."""
        return max((line.runs for line in self.lines), default=0)

    def x(self, value: float) -> str:
        """Return the x coordinate of a gain in its picture."""
        return forest.place(value, forest.ends_of(line.gain for line in self.lines if line.gain))


class Overview:
    """Rankings of the results of all boards; `family` maps each method to its name without settings."""

    def __init__(self, results: Sequence[Result], comparisons: Comparisons) -> None:
        self.results, self.comparisons = results, comparisons
        self.tasks = list(dict.fromkeys(result.task for result in results))
        self.family = {result.method: result.family for result in results}
        competing = {result.task for result in results if not result.ablation}
        self.short = short_names(self.tasks)
        self.short |= short_names([task for task in self.tasks if task in competing])

    @property
    def variants(self) -> list[tuple[bool, bool]]:
        """Sets of results that compete, as (tuned, with ablations): default settings first."""
        found = {(result.tuned, result.ablation) for result in self.results}
        asked = ((False, False), (False, True), (True, False), (True, True))
        return [one for one in asked if one == (False, False) or one in found]

    @property
    def opening(self) -> frozenset[Task]:
        """Tasks shown when the page opens."""
        _, fields = self._first
        return frozenset(task for task in self.tasks if _opened(task) == fields)

    @property
    def opening_view(self) -> View | None:
        """The ranking shown when the page opens; None without results."""
        tuned, _ = self._first
        return self.view(self.opening, tuned=tuned) if self.tasks else None

    def lines_of(self, family: str) -> list[tuple[View, Line]]:
        """Return a method's rows on the tasks shown when the page opens, with their rankings: tuned ones first."""
        return [(view, line) for view in self._opening_views for line in view.lines if line.slug == slug(family)]

    @cached_property
    def _opening_views(self) -> list[View]:
        return [self.view(self.opening, tuned=tuned) for tuned in (True, False)]

    @cached_property
    def _first(self) -> tuple[bool, tuple[str, ...]]:
        """What the page opens with: the group of tasks with equal `OPENING` fields that has the most methods.

        Tuned methods come before default settings, which favour the methods whose defaults suit the task; a tuned one
        alone compares with nothing. Either comes before the scale smoke.
        """
        methods: dict[tuple[bool, tuple[str, ...]], set[str]] = {}
        for result in sorted(self.results, key=lambda result: (result.tuned, _by_scale(result.task))):
            found = methods.setdefault((result.tuned, _opened(result.task)), set())
            if not result.ablation:
                found.add(result.method)

        def precedence(group: tuple[bool, tuple[str, ...]]) -> tuple[bool, bool, bool, int]:
            (tuned, (scale, *_)), count = group, len(methods[group])
            return count > 0, scale != "smoke", tuned and count > 1, count

        return max(methods, key=precedence, default=(False, ()))

    @property
    def scale(self) -> str:
        """The scale of the tasks shown when a page opens; empty without any."""
        return next((task.scale for task in self.opening), "")

    def view(self, tasks: frozenset[Task], ablations: bool = False, tuned: bool = False) -> View:
        """Return the ranking for some tasks, all of one scale."""
        ranking = self.comparisons.ranking(tasks, ablations, tuned)
        chosen = self.comparisons.chosen(tasks, ablations, tuned)
        reference = self.comparisons.reference(chosen)
        said, more = headline(ranking, reference)
        known = [task for task in self.tasks if any(task in results for results in chosen.values())]
        distinct = self.comparisons.distinct
        shared = distinct([task for task in known if all(task in results for results in chosen.values())])
        columns = tuple(known if len(known) <= MOST_COLUMNS else ())
        several = any(row.place.group for row in ranking)
        return View(
            headline=said,
            more=more,
            about=about(
                known, [result for results in chosen.values() for result in results.values()], len(distinct(known))
            ),
            tuned=tuned,
            reference=reference,
            columns=columns,
            headings=self._headings(columns),
            lines=tuple(self._line(row, chosen[row.method], shared, columns, several) for row in ranking),
        )

    def _headings(self, columns: Sequence[Task]) -> tuple[str, ...]:
        """Return column headings that distinguish the tasks; the page's script makes the same ones."""
        several = len({task.dataset for task in columns}) > 1
        pairs = [(FIELDS["dataset"](task), self.short[task]) for task in columns]
        return tuple(f"{dataset}, {short}" if several and short != dataset else short for dataset, short in pairs)

    def _line(
        self, row: Ranked, results: Mapping[Task, Result], shared: list[Task], columns: tuple[Task, ...], several: bool
    ) -> Line:
        name, note = _named(row.method)
        stages = dict.fromkeys(result.stage for result in results.values() if result.stage not in ("", "trained"))
        whole = shared and all(not results[task].diverged and results[task].seeds for task in shared)
        gain = row.gain
        return Line(
            method=row.method,
            slug=slug(self.family[row.method]),
            name=name,
            note=", ".join(filter(None, [*stages, note])),
            place=row.place,
            several=several,
            gain=as_written(gain) if isinstance(gain, Difference) else None,
            why=gain.reason if isinstance(gain, Withheld) else "",
            mean=math.fsum(carried(results[task].mean) for task in shared) / len(shared) if whole else math.nan,
            runs=sum(len(results[task].seeds) for task in shared),
            scores=tuple(results.get(task) for task in columns),
            costs=row.costs[1:],
            repeated=repeated(list(results.values())),
        )

    def data(self) -> dict[str, Any]:
        """Return the data that the page's script needs to show every choice of the filters."""
        tuned, fields = self._first
        methods = {name: i for i, name in enumerate(self.comparisons.methods)}
        number = {task: i for i, task in enumerate(self.tasks)}
        whys: dict[str, int] = {}
        texts: dict[str, int] = {}
        every = list(choices(self.tasks))
        views: list[dict[str, list[Any]]] = []
        for how, more in self.variants:
            plain = views[self.variants.index((how, False))] if more and (how, False) in self.variants else {}
            packed = {_bits(tasks, number): self._packed(self.view(tasks, more, how), methods, whys) for tasks in every}
            views.append({name: _without_known_gains(view, plain.get(name)) for name, view in packed.items()})
        written = [{name: _as_text(view, texts) for name, view in found.items()} for found in views]
        return {
            "first": dict(zip(OPENING, fields, strict=False)) | {"tuned": tuned},
            "names": [_named(name) for name in methods],
            "short": [self.short[task] for task in self.tasks],
            "same": {number[task]: number[first] for task, first in self.comparisons.same.items()},
            "variants": [[int(how), int(more)] for how, more in self.variants],
            "views": written,
            "texts": list(texts),
            "whys": list(whys),
        }

    def _packed(self, view: View, methods: Mapping[str, int], whys: dict[str, int]) -> list[Any]:
        """Return a view with its gains in tenths of a point, and the distances to both ends of their intervals.

        The page's script adds everything that follows from the results alone.
        """
        rows = []
        for line in view.lines:
            row: list[Any] = [methods[line.method], _packed_place(line), *_packed_range(line)]
            if line.gain:
                mean, low, high = (round(10 * value) for value in line.gain)
                row += [mean, mean - low, high - mean]
            elif line.why:
                row.append(whys.setdefault(line.why, len(whys)))
            rows.append(row)
        return [view.headline, view.more, view.about, methods.get(view.reference, -1), rows]


def _opened(task: Task) -> tuple[str, ...]:
    """Return a task's values of the filters that are set when the page opens."""
    return tuple(getattr(task, name) for name in OPENING)


def _named(method: str) -> tuple[str, str]:
    """Return the name of a method's components and its settings; `tuned` is left out, as a ranking has one kind."""
    name, settings = split(method)
    return name, ", ".join(part for part in settings.split(", ") if part != TUNED)


def _by_scale(task: Task) -> int:
    return SCALES.index(task.scale)


def _without_known_gains(view: list[Any], plain: list[Any] | None) -> list[Any]:
    """Return a packed view with ablations, less the gains that the view without ablations already has."""
    *said, reference, rows = view
    if plain is None or plain[-2] != reference:
        return view
    known = {row[0]: row[HEAD:] for row in plain[-1]}
    return [*said, reference, [row[:HEAD] if known.get(row[0]) == row[HEAD:] else row for row in rows]]


def _as_text(view: list[Any], texts: dict[str, int]) -> list[Any]:
    """Return a packed view with its sentences as indices into `texts` and, to save space, its rows as one text."""
    *said, reference, rows = view
    numbers = [texts.setdefault(text, len(texts)) for text in said]
    return [*numbers, reference, ";".join(",".join(map(str, row)) for row in rows)]


def _packed_place(line: Line) -> int | str:
    """Return a place as a number, negative if shared and 0 if undecided; as text if it names its group."""
    if not line.place.tested:
        return 0
    if line.several:
        return line.place_text
    return -line.place.at if line.place.shared else line.place.at


def _packed_range(line: Line) -> tuple[int, int]:
    """Return the ends of a row's range of places, zeros if it is empty."""
    return (line.place.first, line.place.last) if line.range else (0, 0)


def _bits(tasks: Iterable[Task], number: Mapping[Task, int]) -> str:
    """Return the name of a choice of tasks: a bit mask of their numbers, in hexadecimal."""
    return f"{sum(1 << number[task] for task in tasks):x}"


def about(tasks: Sequence[Task], results: Sequence[Result], count: int) -> str:
    """Return the common fields of some tasks in words, with counts of fields that differ, of seeds and of tasks.

    Tuned results add their tuning budget, if all had the same; a warning follows at the scale smoke.
    """
    parts = []
    for name in SUMMARY_FIELDS:
        found = list(dict.fromkeys(FIELDS[name](task) for task in tasks))
        if len(found) == 1:
            parts.append(found[0])
        elif found and name in ("dataset", "partition", "model"):
            parts.append(f"{len(found)} {name}s")
    for name in OPTIONAL_FIELDS:
        found = list(dict.fromkeys(FIELDS[name](task) for task in tasks if getattr(task, name)))
        if len(found) == 1 and all(getattr(task, name) for task in tasks):
            parts.append(found[0])
        elif found and name == "fleet":
            parts.append(names.counted_as(len({task.fleet for task in tasks}), "fleet"))
    counts = sorted({len(result.outcomes) for result in results if result.outcomes})
    if counts:
        least = f"{counts[0]} to " if len(counts) > 1 else ""
        parts.append(least + names.counted_as(counts[-1], "seed"))
    budgets = {result.budget for result in results if result.tuned}
    tuning = f". Each method was tuned on each task: {budgets.pop()}" if len(budgets) == 1 else ""
    warning = SMOKE if {task.scale for task in tasks} == {"smoke"} else ""
    return ", ".join([*parts, names.counted_as(count, "task")]) + tuning + warning if tasks else ""


def repeated(results: Sequence[Result]) -> str:
    """Return in words how many runs of a method were repeated, and how many differed on some machine."""
    runs, same, refuted = (
        sum(counts) for counts in zip(*((len(one.seeds), one.repeated, one.refuted) for one in results), strict=True)
    )
    if not (same or refuted):
        return "not yet"
    return f"{same} of {runs}" + (f", {refuted} differed" if refuted else "")
