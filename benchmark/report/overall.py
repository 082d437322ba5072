"""Methods over all boards: pairwise differences on common tasks, and the ranking for each choice of tasks."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fedspan.benchmark import names
from fedspan.benchmark.report import statistics
from fedspan.benchmark.report.axes import TUNED, with_setting
from fedspan.benchmark.report.frame import COSTS
from fedspan.benchmark.report.ranking import Place, rank
from fedspan.benchmark.report.statistics import Gap, Pairs, Withheld
from fedspan.benchmark.report.summary import Result, Summary, Task
from fedspan.benchmark.report.units import COST_COLUMNS, CostColumn, fixed, signed
from fedspan.benchmark.spec.compose import default_choices

RELATIVE_COSTS = COST_COLUMNS[:3]  # time, compute, traffic
CHOICES = (
    "dataset",
    "partition",
    "skew",
    "clients",
    "fleet",
    "unseen",
    "tested",
    "model",
)  # fields of a task that a reader may fix


def merged(summaries: Iterable[Summary]) -> list[Result]:
    """Return one result per method and task: of several, the one whose seeds are shared with the most methods there.

    Seeds are compared in the order of how many methods have them, so seeds that few have neither count against a result
    nor make up for those that many have. A result competes unless it is an ablation on all its boards. Of the tuned
    results on a task, those with another budget than most methods are left out: they are on their board's page. So are
    runs on other clients' images than most runs of their seed have. The label of a dataset of which the results have
    several copies, such as recompressed images, names the digest of the copy.
    """
    results = _naming_copies([result for summary in summaries for result in summary.results])
    results = _on_usual_partitions(results)
    usual = _usual_budgets(results)
    found: dict[tuple[str, Task], list[Result]] = {}
    having: dict[tuple[Task, bool, int], set[str]] = {}  # methods that have a seed
    for result in results:
        if result.budget and result.budget != usual[result.task]:
            continue
        found.setdefault((result.method, result.task), []).append(result)
        for seed in result.outcomes:
            having.setdefault((result.task, result.tuned, seed), set()).add(result.method)

    def rivals(result: Result) -> list[int]:
        return sorted((len(having[result.task, result.tuned, seed]) for seed in result.outcomes), reverse=True)

    return [
        replace(max(several, key=rivals), ablation=all(result.ablation for result in several))
        for several in found.values()
    ]


def _naming_copies(results: Sequence[Result]) -> list[Result]:
    """Return the results, with the digest of the images in each dataset's label that stands for several digests."""
    copies: dict[str, set[str]] = {}
    for result in results:
        if result.task.digest:
            copies.setdefault(result.task.dataset, set()).add(result.task.digest)

    def named(task: Task) -> Task:
        if not task.digest or len(copies[task.dataset]) == 1:
            return task
        return replace(task, dataset=with_setting(task.dataset, "images", f"sha256:{task.digest}"))

    return [replace(result, task=named(result.task)) for result in results]


def _on_usual_partitions(results: Sequence[Result]) -> list[Result]:
    """Return the results without runs whose partition, by digest, is not that of most runs of their task and seed."""
    counts: dict[tuple[Task, str], Counter[str]] = {}
    for result in results:
        for seed, digest in result.partitions.items():
            counts.setdefault((result.task, seed), Counter())[digest] += 1
    if all(len(digests) == 1 for digests in counts.values()):
        return list(results)
    usual = {of_seed: digests.most_common(1)[0][0] for of_seed, digests in counts.items()}

    def counted(result: Result) -> Result:
        other = {seed for seed, digest in result.partitions.items() if digest != usual[result.task, seed]}
        seeds = {seed: accuracy for seed, accuracy in result.seeds.items() if seed not in other}
        return replace(result, seeds=seeds, lost=tuple(seed for seed in result.lost if str(seed) not in other))

    return [found for found in map(counted, results) if found.outcomes]


def _usual_budgets(results: Iterable[Result]) -> dict[Task, str]:
    """Return the budget for tuning that most methods have on each task."""
    methods: dict[Task, dict[str, set[str]]] = {}
    for result in results:
        if result.budget:
            methods.setdefault(result.task, {}).setdefault(result.budget, set()).add(result.method)
    return {task: max(by_budget, key=lambda one: len(by_budget[one])) for task, by_budget in methods.items()}


def cost_of(result: Result, column: CostColumn) -> float:
    """Return a cost of a result, NaN if unknown."""
    return column.of(costs_of(result))


def costs_of(result: Result) -> dict[str, float]:
    """Return all costs of a result, NaN where unknown."""
    known = {**dict.fromkeys(COSTS), **result.cost}
    return {name: math.nan if value is None else value for name, value in known.items()}


@dataclass(frozen=True)
class Ranked:
    """A method in the overall ranking.

    `gain` is its lead over the reference, and `costs` (`RELATIVE_COSTS`) are relative to those of the reference, both
    over their common tasks; None and NaN without common tasks. The reference itself has no `gain`. `by_divergence`
    counts the others that it is ahead of, without a test, because they alone have diverged runs.
    """

    method: str
    place: Place
    tasks: int
    runs: int
    costs: tuple[float, ...]
    gain: Gap | None = None
    leads: bool = False
    by_divergence: int = 0


class Comparisons:
    """Differences of each pair of methods on each task, computed once for all choices of tasks.

    `results` has one per method and task; tasks of different scales must not be chosen together.
    """

    def __init__(self, results: Sequence[Result]) -> None:
        self.results: dict[str, dict[Task, Result]] = {}
        for result in results:
            self.results.setdefault(result.method, {})[result.task] = result
        self.methods = sorted(self.results)
        scores = {
            method: {task: result.outcomes for task, result in found.items()} for method, found in self.results.items()
        }
        self.same = _same_models(list(scores.values()))
        self.alike = {method: _alike(found) for method, found in self.results.items()}
        self._pairs: dict[tuple[str, str], dict[Task, Pairs]] = {
            pair: found
            for pair in itertools.combinations(self.methods, 2)
            if (found := statistics.paired(*(scores[method] for method in pair)))
        }

    def gap(self, one: str, other: str, tasks: frozenset[Task]) -> Gap | None:
        """Return the difference of `one` minus `other` on those of the tasks that both have; None without any.

        `one` comes first of the two in `methods`. Tasks on which all methods, or one of the two, score the same models
        count once.
        """
        found = self._pairs.get((one, other), {})
        same = statistics.united(self.same, self.alike.get(one, {}), self.alike.get(other, {}))
        groups: dict[Task, list[Task]] = {}
        for task in found:
            if task in tasks:
                groups.setdefault(same.get(task, task), []).append(task)
        return statistics.pooled(
            pairs
            for mine in groups.values()
            for pairs in ([found[mine[0]]] if len(mine) == 1 else self._together(one, other, mine))
        )

    def _together(self, one: str, other: str, tasks: Sequence[Task]) -> Collection[Pairs]:
        """Return the paired differences of two methods on several tasks that count as one; empty without any."""
        first, second = (self._scores(method, tasks) for method in (one, other))
        return statistics.paired({"": first}, {"": second}).values()

    def _scores(self, method: str, tasks: Sequence[Task]) -> dict[int, float]:
        """Return a method's score of each seed: the mean over tasks, with those of the same models as one."""
        outcomes: dict[Task, dict[int, float]] = {}
        for task in tasks:
            outcomes.setdefault(self.same.get(task, task), {}).update(self.results[method][task].outcomes)
        seeds = set.intersection(*map(set, outcomes.values()))
        return {seed: statistics.mean_of(of_task[seed] for of_task in outcomes.values()) for seed in sorted(seeds)}

    def distinct(self, tasks: Collection[Task]) -> list[Task]:
        """Return the tasks without those that score the models of another one again."""
        return [task for task in tasks if self.same.get(task) not in tasks]

    def gain(self, method: str, over: str, tasks: frozenset[Task]) -> Gap | None:
        """Return the lead of a method over another on those of the tasks that both have; None without any."""
        if method <= over:
            return self.gap(method, over, tasks)
        gap = self.gap(over, method, tasks)
        return gap.flipped if gap else None

    def over_base(self, method: str, tasks: frozenset[Task]) -> tuple[str, Gap] | None:
        """Return the first of a method's `bases` that has one of the tasks too, and the method's lead over it."""
        found = ((base, self.gain(method, base, tasks)) for base in bases(method))
        return next(((base, gap) for base, gap in found if gap is not None), None)

    def chosen(
        self, tasks: frozenset[Task], ablations: bool = False, tuned: bool = False
    ) -> dict[str, dict[Task, Result]]:
        """Return the results that compete on the tasks, by method: those with default settings, or those tuned."""
        found = {
            method: {
                task: r
                for task, r in self.results[method].items()
                if task in tasks and r.tuned == tuned and (ablations or not r.ablation)
            }
            for method in self.methods
        }
        return {method: results for method, results in found.items() if results}

    def reference(self, chosen: Mapping[str, Mapping[Task, Result]]) -> str:
        """Return the method that the others are compared with: the default algorithm without add-ons.

        Of several settings of it, the one with the most tasks, at a tie the defaults; without it, the method with the
        most tasks. Empty without methods.
        """
        default = default_choices()["algorithm"]
        alone = [m for m in chosen if any(result.family == default for result in chosen[m].values())]
        return max(alone or chosen, key=lambda method: (len(chosen[method]), method == default), default="")

    def ranking(self, tasks: frozenset[Task], ablations: bool = False, tuned: bool = False) -> list[Ranked]:
        """Rank the methods that compete on the tasks, each pair on the tasks that both have."""
        chosen = self.chosen(tasks, ablations, tuned)
        methods, reference = list(chosen), self.reference(chosen)
        gaps = {}
        for (i, one), (j, other) in itertools.combinations(enumerate(methods), 2):
            if common := chosen[one].keys() & chosen[other].keys():
                gap = self.gap(one, other, frozenset(common))
                if gap is not None:
                    gaps[i, j] = gap
        ranking = rank(len(methods), gaps)
        return [
            Ranked(
                method=(method := methods[place.row]),
                place=place,
                tasks=len(self.distinct(chosen[method])),
                runs=sum(len(result.outcomes) for result in chosen[method].values()),
                costs=relative_costs(chosen[method], chosen[reference]),
                gain=None
                if method == reference
                else self.gain(method, reference, frozenset(chosen[method].keys() & chosen[reference].keys())),
                leads=place.row in ranking.leaders,
                by_divergence=sum(
                    isinstance(gap, Withheld) and gap.sign == (+1 if pair[0] == place.row else -1)
                    for pair, gap in gaps.items()
                    if place.row in pair
                ),
            )
            for place in ranking.places
        ]


def bases(method: str) -> list[str]:
    """Return the bases of a method with add-ons: its algorithm with the same settings, else with the defaults.

    Bases of tuned methods are tuned. A method without add-ons has none.
    """
    components, *settings = names.split(method, ", ")
    algorithm, *addons = names.split(components, " + ")
    plain = [algorithm.partition("(")[0], *(one for one in settings if one == TUNED)]
    return list(dict.fromkeys([", ".join([algorithm, *settings]), ", ".join(plain)])) if addons else []


def _same_models(scores: Sequence[Mapping[Task, Mapping[int, float]]]) -> dict[Task, Task]:
    """Map each task to an earlier one that differs only in fleet, if all common runs have equal outcomes.

    Fleets that differ only in their clocks train the same models.
    """
    tasks = sorted({task for found in scores for task in found}, key=lambda task: task.fleet)
    return statistics.same_tasks(tasks, scores, lambda one, other: replace(other, fleet=one.fleet) == one)


def _alike(results: Mapping[Task, Result]) -> dict[Task, Task]:
    """Map tasks to an earlier one on which a method scores the same models, as pooled training does on any partition.

    Its differences to another method on these tasks are then no independent evidence.
    """
    models = {task: {int(seed): one for seed, one in result.models.items()} for task, result in results.items()}
    return statistics.same_tasks(models, [models])


def relative_costs(mine: Mapping[Task, Result], others: Mapping[Task, Result]) -> tuple[float, ...]:
    """Return the mean ratio of each of `RELATIVE_COSTS` to that of `others`, over tasks where both are known."""
    return tuple(
        _mean([
            cost_of(mine[task], column) / base
            for task in mine
            if task in others and (base := cost_of(others[task], column)) and math.isfinite(base)
        ])
        for column in RELATIVE_COSTS
    )  # fmt: skip


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


def choices(tasks: Sequence[Task]) -> Iterator[frozenset[Task]]:
    """Yield once each set of tasks of one scale that a reader can choose by fixing some of `CHOICES`."""
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
    """Return in words what a difference says about ``{a}`` and ``{b}``."""
    first, second = ("{a}", "{b}")
    if isinstance(gap, Withheld):
        if not gap.sign:
            return f"No interval is given: {gap.reason}."
        first = first if gap.sign > 0 else second
        return f"{first} is ahead: {gap.reason}, none of {first}. No interval is given."
    low, high = gap.low, gap.high
    if gap.mean < 0:
        first, low, high = second, -high, -low
    tasks, pairs = names.counted_as(gap.tasks, "task"), names.counted_as(gap.pairs, "paired run")
    if gap.clear:
        interval = f"95% CI {fixed(low)} to {fixed(high)}"
        return f"{first} is better by {fixed(abs(gap.mean))} points ({interval}; {tasks}, {pairs})."
    if gap.sign:
        return (
            f"No clear winner: {first} is ahead by {fixed(abs(gap.mean))} points on average (95% CI {fixed(low)} to "
            f"{fixed(high)}), but the tests of the {tasks}, combined, do not confirm it (p = {gap.p:.2f})."
        )
    if not gap.mean:
        return f"No clear winner: both have the same mean ({tasks}, {pairs})."
    return (
        f"No clear winner: {first} is ahead by {fixed(abs(gap.mean))} points on average, but the 95% interval "
        f"({signed(low)} to {signed(high)}) includes zero."
    )


def with_names(sentence: str, one: str, other: str) -> str:
    """Return a sentence of `verdict` with two names filled in."""
    return re.sub(r"\{([ab])\}", lambda found: one if found[1] == "a" else other, sentence)
