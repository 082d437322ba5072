"""Methods over all boards: what any two differ by on their common tasks, and the ranking for each choice of tasks."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from statistics import median

from fedspan.benchmark.report import statistics
from fedspan.benchmark.report.frame import COSTS
from fedspan.benchmark.report.ranking import Place, rank
from fedspan.benchmark.report.statistics import Gap, Pairs, Withheld
from fedspan.benchmark.report.summary import Result, Task
from fedspan.benchmark.report.units import COST_COLUMNS, CostColumn, counted_as, signed

RELATIVE_COSTS = COST_COLUMNS[:3]  # time, compute, traffic
CHOICES = ("dataset", "partition", "skew", "clients", "model")  # fields of a task that a reader may fix


def cost_of(result: Result, column: CostColumn) -> float:
    """Return a cost of a result, NaN where it is unknown."""
    return column.of(costs_of(result))


def costs_of(result: Result) -> dict[str, float]:
    """Return all costs of a result, NaN where they are unknown."""
    names = {**dict.fromkeys(COSTS), **result.cost}
    return {name: math.nan if (value := result.cost.get(name)) is None else value for name in names}


@dataclass(frozen=True)
class Ranked:
    """A method in the overall ranking. `costs` are means over its tasks, relative to the median of a task."""

    method: str
    place: Place
    tasks: int
    runs: int
    costs: tuple[float, ...]


class Comparisons:
    """What each pair of methods differs by on each task, measured once for all choices of tasks.

    `results` are one per method and task; tasks of different scales must not be chosen together.
    """

    def __init__(self, results: Sequence[Result]) -> None:
        self.results: dict[str, dict[Task, Result]] = {}
        for result in results:
            self.results.setdefault(result.method, {})[result.task] = result
        self.methods = sorted(self.results)
        scores = {
            method: {task: result.outcomes for task, result in found.items()} for method, found in self.results.items()
        }
        self._pairs: dict[tuple[str, str], dict[Task, Pairs]] = {
            pair: found
            for pair in itertools.combinations(self.methods, 2)
            if (found := statistics.paired(*(scores[method] for method in pair)))
        }

    def gap(self, one: str, other: str, tasks: frozenset[Task]) -> Gap | None:
        """Return what one method differs by from another on those of the tasks that both have; None without one.

        `one` is the first of the two in the order of `methods`.
        """
        return statistics.pooled(pairs for task, pairs in self._pairs.get((one, other), {}).items() if task in tasks)

    def ranking(self, tasks: frozenset[Task], ablations: bool = False) -> list[Ranked]:
        """Rank the methods that have results on some of the tasks, each pair on the tasks that both have."""
        chosen = {
            method: {task: r for task, r in found.items() if task in tasks and (ablations or not r.ablation)}
            for method, found in self.results.items()
        }
        methods = [method for method in self.methods if chosen[method]]
        gaps = {}
        for (i, one), (j, other) in itertools.combinations(enumerate(methods), 2):
            if common := chosen[one].keys() & chosen[other].keys():
                gap = self.gap(one, other, frozenset(common))
                if gap is not None:
                    gaps[i, j] = gap
        relative = _relative_costs([r for found in chosen.values() for r in found.values()])
        return [
            Ranked(
                method=(method := methods[place.row]),
                place=place,
                tasks=len(chosen[method]),
                runs=sum(len(result.outcomes) for result in chosen[method].values()),
                costs=tuple(
                    _mean([relative[method, task][i] for task in chosen[method]]) for i in range(len(RELATIVE_COSTS))
                ),
            )
            for place in rank(len(methods), gaps).places
        ]


def _relative_costs(results: Sequence[Result]) -> dict[tuple[str, Task], tuple[float, ...]]:
    """Return each result's costs relative to the median of its task."""
    groups: dict[Task, list[Result]] = {}
    for result in results:
        groups.setdefault(result.task, []).append(result)
    found = {}
    for task, group in groups.items():
        medians = []
        for column in RELATIVE_COSTS:
            known = [value for result in group if math.isfinite(value := cost_of(result, column))]
            medians.append(median(known) if known else math.nan)
        for result in group:
            found[result.method, task] = tuple(
                cost_of(result, column) / middle if middle else math.nan
                for column, middle in zip(RELATIVE_COSTS, medians, strict=True)
            )
    return found


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


def rounded(value: float, digits: int) -> float:
    """Return a value rounded as people do: halves go up."""
    return float(Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)) if math.isfinite(value) else value


def choices(tasks: Sequence[Task]) -> Iterator[frozenset[Task]]:
    """Yield each set of tasks of one scale that a reader can choose by fixing some of `CHOICES`, once."""
    found: dict[frozenset[Task], None] = {}
    for count in range(len(CHOICES) + 1):
        for fields in itertools.combinations(CHOICES, count):
            groups: dict[tuple[object, ...], list[Task]] = {}
            for task in tasks:
                values = tuple(getattr(task, field) for field in fields)
                if None not in values:
                    groups.setdefault((task.scale, *values), []).append(task)
            found |= dict.fromkeys(map(frozenset, groups.values()))
    yield from found


def verdict(gap: Gap) -> str:
    """Return what a difference says of ``{a}`` and ``{b}``, as one sentence."""
    first, second = ("{a}", "{b}")
    if isinstance(gap, Withheld):
        if not gap.sign:
            return f"No difference is given: {gap.reason}."
        first = first if gap.sign > 0 else second
        return f"{first} is ahead: {gap.reason}, none of {first}. No difference is given."
    low, high = gap.low, gap.high
    if gap.mean < 0:
        first, low, high = second, -high, -low
    tasks, pairs = counted_as(gap.tasks, "task"), counted_as(gap.pairs, "paired run")
    if gap.sign:
        return f"{first} is better by {abs(gap.mean):.2f} points (95 % CI {low:.2f} to {high:.2f}; {tasks}, {pairs})."
    if not gap.mean:
        return f"No clear winner: both have the same mean ({tasks}, {pairs})."
    return (
        f"No clear winner: {first} is ahead by {abs(gap.mean):.2f} points on average, but the 95 % interval "
        f"({signed(low)} to {signed(high)}) includes zero."
    )


def with_names(sentence: str, one: str, other: str) -> str:
    """Put two names into what `verdict` says."""
    return re.sub(r"\{([ab])\}", lambda found: one if found[1] == "a" else other, sentence)
