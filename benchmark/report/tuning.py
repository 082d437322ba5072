"""Tuning on a board: its trials, the chosen settings, their gain on fresh seeds, and the cost.

Trials are scored on held-out images, results on test images with seeds that no trial has seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from fedspan.benchmark import names
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.records.model import accuracy_of, core_seconds
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.selection import WORST, Selection
from fedspan.benchmark.report.arrange import comparable
from fedspan.benchmark.report.axes import DEFAULT, TUNED, TUNING, Axes, text
from fedspan.benchmark.report.expected_best import Best, budgets, expected_best
from fedspan.benchmark.report.statistics import Gap, difference, diverged_score, mean_of
from fedspan.benchmark.report.table import Tabulated
from fedspan.benchmark.report.tabulation import tabulate
from fedspan.benchmark.search import Space, are_numbers
from fedspan.benchmark.spec.board import Table
from fedspan.benchmark.spec.plan import PlannedCell
from fedspan.benchmark.spec.studies import Trial


@dataclass(frozen=True)
class Reported:
    """Cells in report order: `cells` as run, `named` as labelled in tables, `tuning` whether default or tuned.

    Tuned cells are labelled like the default cells beside them; `searched` are the settings that trials chose for them,
    and `budgets` what each method was given for that. On a board that is not tuned, these three are empty.
    """

    cells: tuple[PlannedCell, ...]
    named: tuple[PlannedCell, ...]
    tuning: tuple[str, ...] = ()
    searched: tuple[frozenset[str], ...] = ()
    budgets: tuple[str, ...] = ()

    @classmethod
    def of(cls, cells: Sequence[PlannedCell], selections: Sequence[Selection]) -> Reported:
        """Return the cells of a board; those of each tuned method with the defaults, then with the chosen settings."""
        if not selections:
            return cls(tuple(cells), tuple(cells))
        rows: list[tuple[PlannedCell, PlannedCell, str, frozenset[str], str]] = []
        known = {planned.cell.key: planned for planned in cells}
        for selection in selections:
            named = [known.pop(one.cell.key, one) for one in selection.study.default]
            rows += [(one, one, DEFAULT, frozenset(), "") for one in named]
            searched, budget = frozenset(selection.study.space), selection.study.tune.budget
            pairs = zip(selection.tuned, named, strict=bool(selection.tuned))
            rows += [(one, name, TUNED, searched, budget) for one, name in pairs]
        rows += [(one, one, DEFAULT, frozenset(), "") for one in known.values()]
        return cls(*zip(*rows, strict=True))

    @property
    def axes(self) -> Axes:
        """The axes for tables and figures of these cells."""
        return Axes(self.named, {TUNING: self.tuning} if self.tuning else {})


def tables_of(
    tables: Sequence[Table], frame: pd.DataFrame, reported: Reported
) -> Iterator[tuple[int, Tabulated | UserError]]:
    """Yield the tables of a board by number, made from the runs in `frame`, or the error if one cannot be made.

    Those of a tuned board have default and tuned rows for each method.
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
    """A trial: settings, seconds, and accuracy in percent (`WORST` if it diverged or cannot run, NaN if not yet run).

    The seconds are the total of its runs, NaN if unknown for any of them.
    """

    number: int
    values: Mapping[str, Any]
    accuracy: float
    seconds: float
    keys: tuple[str, ...]
    possible: bool = True

    @property
    def status(self) -> str:
        """The outcome: missing, done, diverged or skipped."""
        if math.isnan(self.accuracy):
            return "missing"
        return "done" if self.accuracy != WORST else "diverged" if self.possible else "skipped"


@dataclass(frozen=True)
class TrialCost:
    """Cost of trials in processor seconds: the sum over the `known` ones of those that `ran`, NaN if none is known."""

    seconds: float
    known: int
    ran: int

    @classmethod
    def of(cls, trials: Collection[TrialRow]) -> TrialCost:
        """Return the cost of the trials that have run on every seed."""
        known = [trial.seconds for trial in trials if math.isfinite(trial.seconds)]
        ran = sum(trial.status != "missing" for trial in trials)
        return cls(math.fsum(known) if known else math.nan, len(known), ran)

    @property
    def partial(self) -> bool:
        """Whether it covers only some of the trials that ran."""
        return 0 < self.known < self.ran


@dataclass(frozen=True)
class TunedMethod:
    """A method tuned on a task.

    `default` and `tuned` are accuracies on test images by seed, `gain` is tuned minus default.
    """

    method: str
    task: str
    validation: float  # share of images held out
    space: Mapping[str, Space]
    trials: tuple[TrialRow, ...]
    chosen: int | None
    note: str
    default: Mapping[int, float]
    tuned: Mapping[int, float]
    gain: Gap | None

    @property
    def begun(self) -> bool:
        """Whether it has any result or trial yet."""
        return bool(self.default or self.tuned) or any(trial.status != "missing" for trial in self.trials)

    @property
    def cost(self) -> TrialCost:
        """The cost of the trials."""
        return TrialCost.of(self.trials)

    @property
    def settings(self) -> str:
        """The chosen settings that differ from the defaults, as typed; empty until all trials have run."""
        return self._chosen_as(lambda name, value: f"{name}={text(value)}")

    @property
    def settings_said(self) -> str:
        """The same in words: ``learning rate 0.0051 (low end)`` for a value near an end of its range."""
        ends = {name: f" ({end} end)" if end else "" for name, end in self.ends.items()}
        return self._chosen_as(lambda name, value: names.of_value(name, value) + ends[name])

    def _chosen_as(self, write: Callable[[str, Any], str]) -> str:
        said = ", ".join(write(name, value) for name, value in self.changed.items())
        return "" if self.chosen is None else said or "the defaults"

    @property
    def changed(self) -> dict[str, Any]:
        """The chosen values that differ from the defaults."""
        values, defaults = self.trials[self.chosen or 0].values, self.trials[0].values
        return {name: value for name, value in values.items() if value != defaults[name]}

    @property
    def ends(self) -> dict[str, str]:
        """``low``, ``high`` or nothing for each of the `changed` values: the end of its range that it is near."""
        return {name: self.space[name].end(value) for name, value in self.changed.items()}

    @property
    def shown(self) -> tuple[float, float]:
        """The accuracies on held-out images of the default and the chosen settings; NaN until known."""
        return self.trials[0].accuracy, math.nan if self.chosen is None else self.trials[self.chosen].accuracy

    @property
    def optimism(self) -> float:
        """The gain of tuning on held-out images minus that on test images; NaN if either is unknown."""
        gap = self.shown[1] - self.shown[0] - getattr(self.gain, "mean", math.nan)
        return gap if math.isfinite(gap) else math.nan

    @property
    def best(self) -> list[Best]:
        """The expected best accuracy of 1, 2, 4, ... and of all trials that have run."""
        known = [trial.accuracy for trial in self.trials if not math.isnan(trial.accuracy)]
        return expected_best(known, budgets(len(known)))


def tuned_methods(selections: Sequence[Selection], results: Results, frame: pd.DataFrame) -> list[TunedMethod]:
    """Return the outcome of each study of a board; `frame` has the default and tuned runs of its cells."""
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
    """Return the test accuracy in percent by key, of the runs that tables count; `lost` for diverged ones."""
    found: dict[str, float] = {}
    rows: list[Any] = list(comparable(frame).itertuples(index=False))
    for row in rows:
        scores: Mapping[str, Any] = row.stages.get("final", {})
        accuracy = accuracy_of(scores)
        if row.status == "diverged":
            found[row.key] = diverged_score(+1)
        elif accuracy is not None:
            found[row.key] = float(accuracy)
    return found


def tuning_facts(found: Sequence[TunedMethod]) -> dict[str, Any]:
    """Return the totals of a board's studies: the number of trials, their failures and cost, and the budgets.

    Trials shared by several studies count once.
    """
    trials = {trial.keys: trial for one in found for trial in one.trials}.values()
    return {
        "trials": len(trials),
        "diverged": sum(trial.status == "diverged" for trial in trials),
        "skipped": sum(trial.status == "skipped" for trial in trials),
        "cost": TrialCost.of(trials),
        "validation": found[0].validation if found else math.nan,
        "budgets": sorted({best.k for one in found for best in one.best}),
    }


# how much a setting matters -------------------------------------------------------------------------


@dataclass(frozen=True)
class Sensitivity:
    """How the accuracy of trials depends on one setting.

    `points` are (place in the search space from 0 to 1, accuracy, trial number); values outside the space, possible for
    defaults, are placed at the nearest end. `correlation` is Spearman's, of the values themselves, NaN where ranks are
    meaningless. The accuracy of a diverged trial is `WORST`: it has the lowest rank.
    """

    setting: str
    space: str
    points: tuple[tuple[float, float, int], ...]
    ends: tuple[str, str]
    best: str
    correlation: float

    @property
    def range(self) -> tuple[float, float]:
        """The lowest and the highest accuracy of finished trials."""
        finished = [accuracy for _, accuracy, _ in self.points if accuracy != WORST]
        return min(finished), max(finished)


def sensitivities(outcome: TunedMethod) -> list[Sensitivity]:
    """Return the sensitivity to each tuned setting with more than one value among trials that could run."""
    from scipy import stats  # takes a second to import, and untuned boards do not need it

    ran = [trial for trial in outcome.trials if trial.status in ("done", "diverged")]
    if not any(trial.status == "done" for trial in ran):
        return []
    found = []
    for setting, space in outcome.space.items():
        values = [trial.values[setting] for trial in ran]
        if len(set(map(str, values))) < 2:
            continue
        places = [space.place(value) for value in values]
        accuracies = [trial.accuracy for trial in ran]
        ranked = are_numbers(values) and len(ran) > 2 and len(set(accuracies)) > 1
        found.append(
            Sensitivity(
                setting=setting,
                space=str(space),
                points=tuple(zip(places, accuracies, (trial.number for trial in ran), strict=True)),
                ends=(text(space.ordered[0]), text(space.ordered[-1])),
                best=text(max(zip(accuracies, values, strict=True), key=lambda pair: pair[0])[1]),
                correlation=float(stats.spearmanr(values, accuracies).statistic) if ranked else math.nan,
            )
        )
    return found


# as frames ------------------------------------------------------------------------------------------


def trials_frame(found: Sequence[TunedMethod]) -> pd.DataFrame:
    """Return a row per trial: method, task, number, settings, status, accuracy in percent, seconds, whether chosen."""
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
    """Return a row per method and task: choice, accuracies in percent, gain with its interval, and seconds."""
    return pd.DataFrame(_outcome_line(one) for one in found).astype({"chosen": "Int64"})  # None for an open study


def outcome_lines(found: Sequence[TunedMethod]) -> list[dict[str, Any]]:
    """Return the rows of `outcomes_frame` for JSON, with None for unknown or infinite numbers."""
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
    """Return a row per method, task and budget k: expected best accuracy of k trials, in percent, with its band."""
    return pd.DataFrame(line for one in found for line in _best_lines(one))


def _best_lines(one: TunedMethod) -> Iterator[dict[str, Any]]:
    for best in one.best:
        yield {"method": one.method, "task": one.task, "trials": best.k} | {
            name: getattr(best, name) for name in ("mean", "low", "high")
        }
