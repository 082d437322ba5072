"""`fedspan.compare`: whether one method is better than another, by how much, and how certain that is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from fedspan.benchmark.errors import UserError, did_you_mean
from fedspan.benchmark.notebook.frames import check_columns, results
from fedspan.benchmark.report import statistics
from fedspan.benchmark.report.overall import verdict, with_names
from fedspan.benchmark.report.statistics import Difference, Gap

COUNTED = ("done", "diverged")  # statuses of runs that count
COMPARED = (
    "method", "tuning", "task", "model", "seed", "accuracy", "stage", "status", "algorithm", "addons", "scale",
    "partition_id", "task_id",
)  # fmt: skip

OF_ONE_RUN = ("key", "seconds", "memory_megabytes", "repeated")  # may differ between runs that train the same model


@dataclass(frozen=True)
class Comparison:
    """Comparison of two methods on the pairs of task and seed that both have, in points of accuracy.

    `pairs` has one row per pair: task, model, seed, the accuracies of `a` and `b`, and their difference. A statistic
    that the runs do not support is NaN, and `text` says why.
    """

    a: str
    b: str
    gap: Gap
    pairs: pd.DataFrame
    diverged: int = 0  # diverged runs of both methods, on shared tasks

    @property
    def mean(self) -> float:
        """The mean difference, `a` minus `b`."""
        return self.gap.mean if isinstance(self.gap, Difference) else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% confidence interval of the mean difference."""
        return (self.gap.low, self.gap.high) if isinstance(self.gap, Difference) else (math.nan, math.nan)

    @property
    def p(self) -> float:
        """The two-sided p-value: the chance of a difference this large or larger if both are equal."""
        return self.gap.p if isinstance(self.gap, Difference) else math.nan

    @property
    def assumes(self) -> str:
        """The assumptions of interval and test."""
        return self.gap.assumes if isinstance(self.gap, Difference) else ""

    @property
    def text(self) -> str:
        """The verdict in one sentence."""
        return with_names(verdict(self.gap), self.a, self.b)

    def __repr__(self) -> str:
        return self.text


def compare(a: str, b: str, runs: pd.DataFrame | None = None, *, board: str | None = None) -> Comparison:
    """Compare two methods on `runs`, on the runs of a `board`, or by default on your own runs.

    Give a method by its name (``FedAvg + FedDecorr (released form)``) or its code names (``fedavg + feddecorr``), with
    ``, tuned`` for the settings chosen by trials on a tuned board. The statistics are those of the pages
    (`docs/leaderboard.md`): a diverged run is worse than any score. Raises `UserError` if a method is unknown, has
    several settings, or shares no run with the other, and if their shared runs mix scales, or trials with other runs.
    """
    if runs is not None and board is not None:
        raise UserError(f"give runs or board={board!r}, not both")
    found = results(board) if runs is None else runs
    one, other = runs_of(found, a), runs_of(found, b)
    if (compared := between(one, other, same_models(found))) is None:
        names = [str(chosen["method"].iloc[0]) for chosen in (one, other)]
        raise UserError(f"{names[0]} and {names[1]} have no run on the same task with the same seed")
    return compared


def between(one: pd.DataFrame, other: pd.DataFrame, same: Mapping[str, str]) -> Comparison | None:
    """Compare two methods by their runs; return None if they share none.

    Tasks that `same` maps to others (`same_models`) count once.
    """
    names = [str(chosen["method"].iloc[0]) for chosen in (one, other)]
    common = set(one["task_id"]) & set(other["task_id"])
    one, other = (_once(runs[runs["task_id"].isin(common)], same) for runs in (one, other))
    _check_alike(pd.concat([one, other]))
    gap = statistics.difference(_scores(one), _scores(other))
    pairs = _pairs(one, other)
    if gap is None or pairs.empty:
        return None
    lost = sum(int(of["status"].eq("diverged").sum()) for of in (one, other))
    return Comparison(names[0], names[1], gap, pairs, lost)


def _check_alike(runs: pd.DataFrame) -> None:
    """Raise `UserError` if runs are of several scales, or if some, but not all, are trials on held-out images."""
    if len(scales := sorted(runs["scale"].dropna().unique())) > 1:
        raise UserError(f"these runs are at the scales {', '.join(scales)}; choose one: runs[runs.scale == ...]")
    if runs["stage"].eq("validation").nunique() > 1:
        raise UserError('some of these runs are trials; leave them out: runs[runs.stage != "validation"]')
    if (runs.groupby(["task_id", "seed"])["partition_id"].nunique() > 1).any():
        raise UserError("some of these runs of one seed have other images per client (by digest); train them again")


def same_models(runs: pd.DataFrame) -> dict[str, str]:
    """Map each task to an earlier one that differs only in fleet, if all common runs have equal outcomes.

    Fleets that differ only in their clocks train the same models.
    """
    known = runs[runs["status"].isin(COUNTED)]
    known = known.drop_duplicates(["method", "task_id", "seed"], keep=False)  # several settings cannot be paired
    scores = [_scores(mine) for _, mine in known.groupby("method")]
    return statistics.same_tasks(
        sorted(known["task_id"].unique()), scores, lambda one, other: one.split("-")[0] == other.split("-")[0]
    )


def _once(runs: pd.DataFrame, same: Mapping[str, str]) -> pd.DataFrame:
    """Return the runs with one of each seed on tasks that are the same."""
    return runs.assign(task_id=runs["task_id"].replace(dict(same))).drop_duplicates(["task_id", "seed"])


def runs_of(found: pd.DataFrame, wanted: str) -> pd.DataFrame:
    """Return a method's done and diverged runs; raise `UserError` if there are none or they are ambiguous."""
    check_columns(found, *COMPARED)
    known = found[found["status"].isin(COUNTED)]
    codes = known["algorithm"] + known["addons"].map(lambda addons: f" + {addons}" if addons else "")
    codes += known["tuning"].eq("tuned").fillna(False).map({True: ", tuned", False: ""})
    named = known["method"] == wanted
    mine = known[named if named.any() else codes == wanted]
    if mine.empty:
        there = sorted({*known["method"].dropna(), *codes.dropna()})
        raise UserError(f"no runs of the method '{wanted}'{did_you_mean(wanted, there) if there else ''}")
    if mine["method"].nunique() > 1:
        settings = ", ".join(sorted(mine["method"].unique()))
        raise UserError(f"'{wanted}' has runs with several settings; name one of {settings}")
    mine = mine.drop_duplicates([name for name in mine if name not in OF_ONE_RUN])  # they differ in diagnostics
    if mine.duplicated(["task_id", "seed"]).any():
        raise UserError(f"'{wanted}' has several runs of one seed on a task; choose among their protocols (lr, ...)")
    return mine


def _scores(runs: pd.DataFrame) -> dict[str, dict[int, float]]:
    scores: dict[str, dict[int, float]] = {}
    for task, seed, status, accuracy in runs[["task_id", "seed", "status", "accuracy"]].to_numpy(dtype=object):
        if status == "diverged" or accuracy is not pd.NA:
            scores.setdefault(task, {})[seed] = statistics.diverged_score(+1) if status == "diverged" else accuracy
    return scores


def _pairs(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    shared = ["task_id", "seed"]
    both = one[["task", "model", *shared, "accuracy"]].merge(
        other[[*shared, "accuracy"]], on=shared, suffixes=("_a", "_b")
    )
    both["difference"] = both["accuracy_a"] - both["accuracy_b"]
    return both.drop(columns="task_id")
