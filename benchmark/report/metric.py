"""Metrics: stage and name, unit, formatting, and which way is better."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from fedspan.benchmark.errors import UserError, did_you_mean
from fedspan.benchmark.records.model import STAGES, TRIAL
from fedspan.benchmark.report.units import bytes_text, fixed, with_sign
from fedspan.benchmark.training.costs import STAGE

WHEN = {
    "trained": "after the last round, before any calibration",
    "calibrated": "after calibration",
    "final": "at the method's last stage",
}  # stages by which runs are ranked, in words
# Readable forms of abbreviated metric names; the other names are readable as they are.
WORDS = {
    "client_accuracy": "mean accuracy over clients",
    "client_accuracy_std": "standard deviation of the accuracy over clients",
    "domain_accuracy": "mean accuracy over domains",
    "domain_accuracy.*": "accuracy on each domain",
    "bytes": "bytes of all rounds",
    "memory_bytes": "bytes of a training step",
    "round_gflop": "GFLOP of a round",
    "calibration_gflop": "GFLOP of the calibration",
    "classifier_gflop": "GFLOP of the classifier",
    "classifier_megabytes": "megabytes of the classifier",
    "calibration_seconds": "seconds of the calibration",
    "head_seconds": "seconds of the head",
}
SCORES = (
    "accuracy", "loss", "client_accuracy", "client_accuracy_std", "worst_tenth_accuracy", "unseen_accuracy",
    "unseen_accuracy_std", "unseen_worst_tenth_accuracy", "domain_accuracy", "domain_accuracy.*",
)  # fmt: skip
COSTS = (
    "bytes", "memory_bytes", "peak_memory_bytes", "classifier_megabytes", "classifier_gflop", "head_seconds",
    "calibration_seconds", "local_seconds_per_round", "minutes_per_round", "lost_visits", "simulated_seconds",
    "simulated_seconds_per_round",
)  # fmt: skip
COMPUTED = (
    "parameters", "features", "classes", "bytes", "bytes_per_client_round", "round_gflop", "train_gflop",
    "memory_bytes", "calibration_gflop", "classifier_megabytes", "classifier_gflop",
)  # fmt: skip
KNOWN = {
    **dict.fromkeys((*STAGES, "final"), SCORES),
    "best": ("accuracy", "round"),
    TRIAL: (*SCORES, "accuracy.*", "loss.*", "images", "clients", "clients_without"),
    "alignment": ("cosine", "norm_difference"),
    "privacy": ("epsilon", "delta"),
    "cost": COSTS,
    STAGE: COMPUTED,
}  # by stage, all metrics that a record or a report can have; * stands for any name
BYTES = ("bytes", "memory_bytes")  # metrics that are written in decimal units
COUNTED = ("bytes", "memory_bytes", "classifier_megabytes", "classifier_gflop")  # costs that follow from shapes
TIMES = {"seconds": "s", "minutes": "min"}  # words in the names of costs that are times, and their units
DECIMALS = 12  # of differences; any further ones are rounding errors of floats
UNITS = {**TIMES, "megabytes": "MB", "gflop": "GFLOP"}  # of costs that are written without their unit


def check_metric(path: str) -> None:
    """Raise `UserError` if no record or report can have a metric, ``stage.name`` or ``stage.name.*``."""
    metric = Metric.of(path)
    if metric.stage not in KNOWN:
        raise UserError(f"metric '{path}' has an unknown stage{did_you_mean(metric.stage, KNOWN)}")
    if not any(fnmatchcase(metric.name, one) for one in KNOWN[metric.stage]):
        near = did_you_mean(path, (f"{metric.stage}.{one}" for one in KNOWN[metric.stage]))
        raise UserError(f"no record has the metric '{path}'{near}")


@dataclass(frozen=True)
class Metric:
    """A score of the records: `stage`.`name`, its formatting, and which way is better (+1, -1, or 0).

    With `minus`, the name of a reference in words, it is the (`relative`) difference to the reference's score.
    """

    stage: str
    name: str
    digits: int
    better: int
    unit: str = ""
    minus: str = ""
    relative: bool = False

    @classmethod
    def of(cls, path: str) -> Metric:
        """Return the metric of ``stage.metric``; raise `UserError` if `path` does not have that form."""
        stage, dot, name = path.partition(".")
        if not (stage and dot and name):
            raise UserError(f"metric '{path}' must be written stage.metric (trained.accuracy)")
        if name.split(".")[0].endswith("accuracy"):
            return cls(stage, name, digits=2, better=+1, unit="%")
        if name.endswith("accuracy_std"):
            return cls(stage, name, digits=2, better=0, unit="%")
        if stage == "cost":
            return cls(stage, name, digits=4, better=-1)
        if stage == STAGE:
            return cls(stage, name, digits=4, better=0)
        return cls(stage, name, digits=4, better=-1 if name.endswith("loss") else 0)

    def difference(self, minus: str, relative: bool) -> Metric:
        """Return the metric of the difference to the reference `minus`, which is better neither way."""
        unit = "%" if relative else "percentage points" if self.unit == "%" else self.unit
        return replace(self, better=0, unit=unit, minus=minus, relative=relative)

    @property
    def path(self) -> str:
        """Stage and name, as written in boards."""
        return f"{self.stage}.{self.name}"

    @property
    def words(self) -> str:
        """Its name in words."""
        return WORDS.get(self.name) or re.sub("[._]", " ", self.name.removesuffix(".*"))

    @property
    def label(self) -> str:
        """Label for readers, with stage, reference and unit."""
        minus = f", {'relative ' if self.relative else ''}difference to {self.minus}" if self.minus else ""
        return f"{self.words} ({self.stage}){minus}" + (f", {self.unit}" if self.unit else "")

    @property
    def ranked(self) -> str:
        """Ranking criterion in words: ``accuracy after the last round, before any calibration``."""
        return f"{self.words} {WHEN.get(self.stage, f'({self.stage})')}"

    @property
    def heading(self) -> str:
        """The `label` with a capital."""
        return self.label[0].upper() + self.label[1:]

    @property
    def counted(self) -> bool:
        """Whether it is a cost that is counted, not measured: it depends neither on chance nor on the machine."""
        return self.stage == "cost" and self.name in COUNTED

    @property
    def timed(self) -> bool:
        """Whether it is a time measured on a machine, unlike the simulated clock of a fleet."""
        return self.stage == "cost" and "simulated" not in self._parts and any(word in TIMES for word in self._parts)

    @property
    def _parts(self) -> list[str]:
        return self.name.split("_")

    def find(self, stages: Mapping[str, Mapping[str, Any]]) -> tuple[bool, float | None]:
        """Return whether a record's stages have the score, and its value, which may be None by definition."""
        scores = stages.get(self.stage, {})
        return self.name in scores, scores.get(self.name)

    def write(self, value: float) -> str:
        """Return the value with the metric's decimals, a difference with its sign.

        Costs, and other values below 1e-4 without a unit, have four significant digits, or all before the point; sizes
        have decimal units: ``398 MB``.
        """
        return self.write_difference(value) if self.minus else self.write_spread(value)

    def write_difference(self, value: float) -> str:
        """Return the difference of two values in their format, with its sign unless it is rounded to zero."""
        return with_sign(value, self.write_spread(round(abs(value), DECIMALS)))

    def say_difference(self, value: float) -> str:
        """Return the difference of two values with its unit: ``+1.08 points``, ``−159 MB``, ``−1.2 s``."""
        unit = "points" if self.unit == "%" else next((UNITS[word] for word in self._parts if word in UNITS), "")
        return f"{self.write_difference(value)} {unit}".rstrip()

    def write_spread(self, value: float) -> str:
        """Return a value without a sign, or a standard deviation, in the metric's format."""
        if self.relative:
            return fixed(value)
        if self.name in BYTES:
            return bytes_text(value)
        if self.minus:
            value = round(value, DECIMALS)
        if self.stage in ("cost", STAGE) or (not self.unit and 0 < abs(value) < 1e-4):
            return f"{value:.0f}" if abs(value) >= 9_999.5 else f"{value:.4g}"
        return fixed(value, self.digits)
