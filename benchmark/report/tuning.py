"""What tuning did on a board: its trials, what they chose, what that brought on fresh seeds, and what it cost.

Numbers of trials are of held-out images, numbers of results of test images on seeds that no trial has seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import special, stats

from fedspan.benchmark import names
from fedspan.benchmark.records.model import accuracy_of, core_seconds
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.selection import WORST, Selection
from fedspan.benchmark.report.axes import text
from fedspan.benchmark.report.frame import collect
from fedspan.benchmark.report.statistics import Gap, difference, lost, mean_of
from fedspan.benchmark.report.units import counted_as, write_seconds
from fedspan.benchmark.search import Space
from fedspan.benchmark.spec.plan import Planned
from fedspan.benchmark.spec.studies import Trial

DEFAULT, TUNED = "default", "tuned"
BAND = (0.1, 0.9)  # of the expected best: how lucky or unlucky a draw of trials is


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


@dataclass(frozen=True)
class TrialRow:
    """A trial: its settings, its accuracy in percent (`WORST` if it diverged, NaN if it has not run), its seconds."""

    number: int
    values: Mapping[str, Any]
    accuracy: float
    seconds: float
    keys: tuple[str, ...]

    @property
    def status(self) -> str:
        """What became of it."""
        return "missing" if math.isnan(self.accuracy) else "diverged" if self.accuracy == WORST else "done"


@dataclass(frozen=True)
class Best:
    """The best accuracy of `k` trials: its mean over all subsets of the trials at hand, and `BAND` of them.

    Where a subset may hold diverged trials alone there is no mean, and an end of the band may be infinite.
    """

    k: int
    mean: float
    low: float
    high: float


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
    def seconds(self) -> float:
        """What the trials cost, in seconds of a processor; NaN if that is unknown."""
        return _known_sum(trial.seconds for trial in self.trials)

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


def tuned_methods(selections: Sequence[Selection], results: Results) -> list[TunedMethod]:
    """Return what came of each study of a board."""
    return [_tuned_method(selection, results) for selection in selections]


def _tuned_method(selection: Selection, results: Results) -> TunedMethod:
    study = selection.study
    default, tuned = (_tested(cells, results) for cells in (study.default, selection.tuned))
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
    known = math.nan if accuracy is None else accuracy
    return TrialRow(trial.number, values, accuracy=known, seconds=math.fsum(spent) if spent else math.nan, keys=keys)


def _tested(cells: Sequence[Planned], results: Results) -> dict[int, float]:
    """Return the accuracy on test images by seed, in percent; worse than any where a run diverged."""
    found: dict[int, float] = {}
    rows: list[Any] = list(collect(cells, results).itertuples(index=False))
    for row in rows:
        scores: Mapping[str, Any] = row.stages.get("final", {})
        accuracy = accuracy_of(scores)
        if row.status == "diverged":
            found[int(row.seed)] = lost(+1)
        elif accuracy is not None:
            found[int(row.seed)] = float(accuracy)
    return found


def tuning_facts(found: Sequence[TunedMethod]) -> dict[str, Any]:
    """Return what all studies of a board cost together: their trials, how many of them ran, and the seconds of these.

    Studies that share trials pay for them once.
    """
    trials = {trial.keys: trial for one in found for trial in one.trials}.values()
    return {
        "trials": len(trials),
        "ran": sum(trial.status != "missing" for trial in trials),
        "diverged": sum(trial.status == "diverged" for trial in trials),
        "seconds": _known_sum(trial.seconds for trial in trials),
        "validation": found[0].validation if found else math.nan,
        "budgets": sorted({best.k for one in found for best in one.best}),
    }


def _known_sum(values: Iterable[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return math.fsum(known) if known else math.nan


def cost_of_trials(facts: Mapping[str, Any]) -> str:
    """Return in a sentence how many trials of `tuning_facts` ran, and what they cost."""
    trials, ran, diverged = facts["trials"], facts["ran"], facts["diverged"]
    if not ran:
        return f"None of the {counted_as(trials, 'trial')} has run yet."
    said = f"{counted_as(trials, 'trial')} took" if ran == trials else f"{ran} of {trials} trials have run and took"
    lost = f"; {diverged} diverged" if diverged else ""
    known = math.isfinite(facts["seconds"])
    return f"{said} {write_seconds(facts['seconds']) + ' of one processor' if known else 'an unknown time'}{lost}."


# how good a method is after k trials ----------------------------------------------------------------


def budgets(trials: int) -> list[int]:
    """Return 1, 2, 4, ... below a number of trials, and that number."""
    return [*(2**i for i in range(trials.bit_length()) if 2**i < trials), *([trials] if trials else [])]


def expected_best(accuracies: Sequence[float], ks: Sequence[int]) -> list[Best]:
    """Return the best of k trials, over all subsets of k of those at hand, each as likely.

    The i-th smallest of n is the best of C(i - 1, k - 1) of the C(n, k) subsets, which gives mean and quantiles without
    drawing any. As in Dodge et al. 2019 (EMNLP), whose subsets are drawn with replacement.
    """
    ordered, n = np.sort(np.asarray(accuracies, dtype=np.float64)), len(accuracies)
    found = []
    for k in ks:
        chances = special.comb(np.arange(n), k - 1) / special.comb(n, k)
        possible = chances > 0
        mean = float(chances[possible] @ ordered[possible]) if np.isfinite(ordered[possible]).all() else math.nan
        reached = np.cumsum(chances)
        low, high = (float(ordered[np.argmax(reached >= share - 1e-12)]) for share in BAND)
        found.append(Best(k, mean, low, high))
    return found


# how much a setting matters -------------------------------------------------------------------------


@dataclass(frozen=True)
class Sensitivity:
    """How the accuracy of trials goes with one setting.

    `points` are (place in the search space from 0 to 1, accuracy, number of the trial); of values outside the space,
    which a default may have, the nearest end. `correlation` is Spearman's, NaN where ranks mean nothing.
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
        numbers = not any(isinstance(value, str | bool) for value in values)
        ranked = numbers and len(done) > 2 and len(set(accuracies)) > 1
        found.append(
            Sensitivity(
                setting=setting,
                space=str(space),
                points=tuple(zip(places, accuracies, (trial.number for trial in done), strict=True)),
                ends=(text(space.values[0]), text(space.values[-1])),
                best=text(max(zip(accuracies, values, strict=True), key=lambda pair: pair[0])[1]),
                correlation=float(stats.spearmanr(places, accuracies).statistic) if ranked else math.nan,
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
        "seconds": one.seconds,
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
