"""What tuning did on a board: its trials, what they chose, what that brought on fresh seeds, and what it cost.

Numbers of trials are of held-out images, numbers of results of test images on seeds that no trial has seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from scipy import stats

from fedspan.benchmark import names
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.records.model import accuracy_of, core_seconds
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.selection import WORST, Selection
from fedspan.benchmark.report.arrange import comparable
from fedspan.benchmark.report.axes import TUNING, Axes, text
from fedspan.benchmark.report.expected_best import Best, budgets, expected_best
from fedspan.benchmark.report.statistics import Gap, difference, lost, mean_of
from fedspan.benchmark.report.table import Tabulated
from fedspan.benchmark.report.tabulation import tabulate
from fedspan.benchmark.report.units import counted_as, write_seconds
from fedspan.benchmark.search import Space, are_numbers
from fedspan.benchmark.spec.board import Table
from fedspan.benchmark.spec.plan import Planned
from fedspan.benchmark.spec.studies import Trial

DEFAULT, TUNED = "default", "tuned"
LOST = {"diverged": "diverged", "skipped": "cannot run"}  # statuses of trials, as people read them


@dataclass(frozen=True)
class Reported:
    """Cells in the order of a report: `cells` are what ran, `named` what tables call them, `tuning` with what settings.

    Tuned cells are called as those with the defaults, beside which they stand, and `searched` are the settings that
    trials chose for them. Without a tuned board `tuning` and `searched` are empty.
    """

    cells: tuple[Planned, ...]
    named: tuple[Planned, ...]
    tuning: tuple[str, ...] = ()
    searched: tuple[frozenset[str], ...] = ()

    @classmethod
    def of(cls, cells: Sequence[Planned], selections: Sequence[Selection]) -> Reported:
        """Return the cells of a board, each method's with the defaults and then those that its trials chose."""
        if not selections:
            return cls(tuple(cells), tuple(cells))
        rows: list[tuple[Planned, Planned, str, frozenset[str]]] = []
        known = {planned.cell.key: planned for planned in cells}
        for selection in selections:
            named = [known.pop(one.cell.key, one) for one in selection.study.default]
            rows += [(one, one, DEFAULT, frozenset()) for one in named]
            pairs, searched = (
                zip(selection.tuned, named, strict=bool(selection.tuned)),
                frozenset(selection.study.space),
            )
            rows += [(one, name, TUNED, searched) for one, name in pairs]
        rows += [(one, one, DEFAULT, frozenset()) for one in known.values()]
        return cls(*zip(*rows, strict=True))

    @property
    def axes(self) -> Axes:
        """The axes of tables and figures of these cells."""
        return Axes(self.named, {TUNING: self.tuning} if self.tuning else {})


def tables_of(
    tables: Sequence[Table], frame: pd.DataFrame, reported: Reported
) -> Iterator[tuple[int, Tabulated | UserError]]:
    """Yield the tables of a board by number, each as made of the runs in `frame` or with the reason why it cannot be.

    Those of a tuned board have default and tuned rows of each method.
    """
    axes = reported.axes
    for number, table in enumerate(tables, 1):
        if reported.tuning and TUNING not in (*table.rows, *table.columns):
            table = replace(table, rows=(*table.rows, TUNING))
        try:
            yield number, tabulate(frame, axes, table, number)
        except UserError as error:
            yield number, error


@dataclass(frozen=True)
class TrialRow:
    """A trial: its settings, its accuracy in percent (`WORST` if it diverged, NaN if it has not run), its seconds.

    The seconds are those of all its runs, NaN if they are unknown of one.
    """

    number: int
    values: Mapping[str, Any]
    accuracy: float
    seconds: float
    keys: tuple[str, ...]
    possible: bool = True

    @property
    def status(self) -> str:
        """What became of it."""
        if math.isnan(self.accuracy):
            return "missing"
        return "done" if self.accuracy != WORST else "diverged" if self.possible else "skipped"


@dataclass(frozen=True)
class Cost:
    """What trials took in seconds of a processor: the sum of the `known` ones of those that `ran`, NaN if none is."""

    seconds: float
    known: int
    ran: int

    @classmethod
    def of(cls, trials: Collection[TrialRow]) -> Cost:
        """Return the sum over the trials that have run on every seed."""
        known = [trial.seconds for trial in trials if math.isfinite(trial.seconds)]
        ran = sum(trial.status != "missing" for trial in trials)
        return cls(math.fsum(known) if known else math.nan, len(known), ran)

    @property
    def partial(self) -> bool:
        """Whether it is that of some of the trials alone."""
        return 0 < self.known < self.ran


@dataclass(frozen=True)
class TunedMethod:
    """A method tuned on a task.

    `default` and `tuned` are accuracies on test images by seed, `gain` is by how much the tuned ones are higher.
    """

    method: str
    task: str
    validation: float  # share of held-out images
    space: Mapping[str, Space]
    trials: tuple[TrialRow, ...]
    chosen: int | None
    note: str
    default: Mapping[int, float]
    tuned: Mapping[int, float]
    gain: Gap | None

    @property
    def begun(self) -> bool:
        """Whether there is any result of it."""
        return bool(self.default or self.tuned) or any(trial.status != "missing" for trial in self.trials)

    @property
    def cost(self) -> Cost:
        """What the trials took."""
        return Cost.of(self.trials)

    @property
    def settings(self) -> str:
        """The chosen settings that differ from the defaults, as they are typed; empty until all trials have run."""
        return self._chosen_as(lambda name, value: f"{name}={text(value)}")

    @property
    def settings_said(self) -> str:
        """The same in words: ``learning rate 0.0051 (low end)``, where a value lies at an end of its range."""

        def write(name: str, value: Any) -> str:
            end = self.space[name].end(value)
            return names.of_value(name, value) + (f" ({end} end)" if end else "")

        return self._chosen_as(write)

    def _chosen_as(self, write: Callable[[str, Any], str]) -> str:
        if self.chosen is None:
            return ""
        values, defaults = self.trials[self.chosen].values, self.trials[0].values
        changed = [write(name, value) for name, value in values.items() if value != defaults[name]]
        return ", ".join(changed) or "the defaults"

    @property
    def shown(self) -> tuple[float, float]:
        """The accuracies on held-out images of the defaults and of what was chosen; NaN until known."""
        return self.trials[0].accuracy, math.nan if self.chosen is None else self.trials[self.chosen].accuracy

    @property
    def optimism(self) -> float:
        """By how much the chosen settings did better on held-out images than on test images; NaN until known."""
        return self.shown[1] - mean_of(self.tuned.values())

    @property
    def best(self) -> list[Best]:
        """The expected best of 1, 2, 4, ... and of all trials that have run."""
        known = [trial.accuracy for trial in self.trials if not math.isnan(trial.accuracy)]
        return expected_best(known, budgets(len(known)))


def tuned_methods(selections: Sequence[Selection], results: Results, frame: pd.DataFrame) -> list[TunedMethod]:
    """Return what came of each study of a board; `frame` has the runs of its cells, default and tuned."""
    tested = _tested(frame)
    return [_tuned_method(selection, results, tested) for selection in selections]


def _tuned_method(selection: Selection, results: Results, tested: Mapping[str, float]) -> TunedMethod:
    study = selection.study
    default, tuned = (
        {one.cell.seed: tested[one.cell.key] for one in cells if one.cell.key in tested}
        for cells in (study.default, selection.tuned)
    )
    return TunedMethod(
        method=study.method,
        task=study.task,
        validation=study.tune.validation,
        space=study.space,
        trials=tuple(
            _trial_row(trial, study.values_of(trial), accuracy, results)
            for trial, accuracy in zip(study.trials, selection.accuracies, strict=True)
        ),
        chosen=None if selection.chosen is None else selection.chosen.number,
        note=selection.note,
        default=default,
        tuned=tuned,
        gain=difference({0: tuned}, {0: default}) if tuned else None,
    )


def _trial_row(trial: Trial, values: Mapping[str, Any], accuracy: float | None, results: Results) -> TrialRow:
    keys = tuple(planned.cell.key for planned in trial.cells)
    records = [record for key in keys if (record := results.read(key)) is not None]
    spent = [seconds for record in records if (seconds := core_seconds(record)) is not None]
    return TrialRow(
        number=trial.number,
        values=values,
        accuracy=math.nan if accuracy is None else accuracy,
        seconds=math.fsum(spent) if len(spent) == len(keys) else math.nan,
        keys=keys,
        possible=all(record["status"] != "skipped" for record in records),
    )


def _tested(frame: pd.DataFrame) -> dict[str, float]:
    """Return the accuracy on test images by key, in percent, of the runs that tables count; of diverged ones `lost`."""
    found: dict[str, float] = {}
    rows: list[Any] = list(comparable(frame).itertuples(index=False))
    for row in rows:
        scores: Mapping[str, Any] = row.stages.get("final", {})
        accuracy = accuracy_of(scores)
        if row.status == "diverged":
            found[row.key] = lost(+1)
        elif accuracy is not None:
            found[row.key] = float(accuracy)
    return found


def tuning_facts(found: Sequence[TunedMethod]) -> dict[str, Any]:
    """Return what all studies of a board cost together: their trials, and what those that ran took.

    Studies that share trials pay for them once.
    """
    trials = {trial.keys: trial for one in found for trial in one.trials}.values()
    return {
        "trials": len(trials),
        "diverged": sum(trial.status == "diverged" for trial in trials),
        "skipped": sum(trial.status == "skipped" for trial in trials),
        "cost": Cost.of(trials),
        "validation": found[0].validation if found else math.nan,
        "budgets": sorted({best.k for one in found for best in one.best}),
    }


def cost_of_trials(facts: Mapping[str, Any]) -> str:
    """Return in a sentence how many trials of `tuning_facts` ran, and what they cost."""
    trials, cost = facts["trials"], facts["cost"]
    if not cost.ran:
        return f"None of the {counted_as(trials, 'trial')} has run yet."
    all_ran = cost.ran == trials
    said = f"{counted_as(trials, 'trial')} took" if all_ran else f"{cost.ran} of {trials} trials have run and took"
    time = f"{write_seconds(cost.seconds)} of one processor" if cost.known else "an unknown time"
    if cost.partial:
        time = f"at least {time}, known for {cost.known} of them"
    lost = "".join(f"; {facts[what]} {word}" for what, word in LOST.items() if facts[what])
    return f"{said} {time}{lost}."


# how much a setting matters -------------------------------------------------------------------------


@dataclass(frozen=True)
class Sensitivity:
    """How the accuracy of trials goes with one setting.

    `points` are (place in the search space from 0 to 1, accuracy, number of the trial); of values outside the space,
    which a default may have, the nearest end. `correlation` is Spearman's, of the values themselves, NaN where their
    ranks mean nothing.
    """

    setting: str
    space: str
    points: tuple[tuple[float, float, int], ...]
    ends: tuple[str, str]
    best: str
    correlation: float


def sensitivities(outcome: TunedMethod) -> list[Sensitivity]:
    """Return one for each tuned setting that has more than one value among the finished trials."""
    done = [trial for trial in outcome.trials if trial.status == "done"]
    found = []
    for setting, space in outcome.space.items():
        values = [trial.values[setting] for trial in done]
        if len(set(map(str, values))) < 2:
            continue
        places = [space.place(value) for value in values]
        accuracies = [trial.accuracy for trial in done]
        ranked = are_numbers(values) and len(done) > 2 and len(set(accuracies)) > 1
        found.append(
            Sensitivity(
                setting=setting,
                space=str(space),
                points=tuple(zip(places, accuracies, (trial.number for trial in done), strict=True)),
                ends=(text(space.ordered[0]), text(space.ordered[-1])),
                best=text(max(zip(accuracies, values, strict=True), key=lambda pair: pair[0])[1]),
                correlation=float(stats.spearmanr(values, accuracies).statistic) if ranked else math.nan,
            )
        )
    return found


# as frames ------------------------------------------------------------------------------------------


def trials_frame(found: Sequence[TunedMethod]) -> pd.DataFrame:
    """Return a row per trial: method, task, number, settings, accuracy in percent, seconds, whether it was chosen."""
    return pd.DataFrame(
        {
            "method": one.method,
            "task": one.task,
            "trial": trial.number,
            **{name: text(value) for name, value in trial.values.items()},
            "status": trial.status,
            "validation_accuracy": trial.accuracy if trial.status == "done" else None,
            "seconds": trial.seconds,
            "chosen": trial.number == one.chosen,
            "keys": " ".join(trial.keys),
        }
        for one in found
        for trial in one.trials
    )


def outcomes_frame(found: Sequence[TunedMethod]) -> pd.DataFrame:
    """Return a row per method and task: the choice, accuracies in percent, the gain with its interval, the seconds."""
    return pd.DataFrame(_outcome_line(one) for one in found)


def outcome_lines(found: Sequence[TunedMethod]) -> list[dict[str, Any]]:
    """Return the rows of `outcomes_frame` as JSON takes them: None for a number that is not known, or not finite."""
    return [
        {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in line.items()}
        for line in map(_outcome_line, found)
    ]


def _outcome_line(one: TunedMethod) -> dict[str, Any]:
    return {
        "method": one.method,
        "task": one.task,
        "trials": len(one.trials),
        "diverged": sum(trial.status == "diverged" for trial in one.trials),
        "skipped": sum(trial.status == "skipped" for trial in one.trials),
        "missing": sum(trial.status == "missing" for trial in one.trials),
        "chosen": one.chosen,
        "settings": one.settings,
        "validation_default": one.shown[0],
        "validation_tuned": one.shown[1],
        "test_default": mean_of(one.default.values()),
        "test_tuned": mean_of(one.tuned.values()),
        "gain": getattr(one.gain, "mean", math.nan),
        "gain_low": getattr(one.gain, "low", math.nan),
        "gain_high": getattr(one.gain, "high", math.nan),
        "optimism": one.optimism,
        "seconds": one.cost.seconds,
        "trials_with_seconds": one.cost.known,
        "note": one.note,
    }


def best_frame(found: Sequence[TunedMethod]) -> pd.DataFrame:
    """Return a row per method, task and budget: the expected best accuracy of k trials, in percent, with its band."""
    return pd.DataFrame(line for one in found for line in _best_lines(one))


def _best_lines(one: TunedMethod) -> Iterator[dict[str, Any]]:
    for best in one.best:
        yield {"method": one.method, "task": one.task, "trials": best.k} | {
            name: getattr(best, name) for name in ("mean", "low", "high")
        }
