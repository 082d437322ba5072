"""Training protocol: the numbers listed in a paper's experimental section. Presets are YAML files."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch

from fedspan.benchmark.errors import require
from fedspan.benchmark.registry import later, what_of
from fedspan.benchmark.search import choice

OF_THE_TASK = ("rounds", "local_epochs", "eval_every")  # fields that all methods share; the others belong to a method
MOST_ROUNDS = 1_000_000
MOST_EPOCHS = 10_000  # per client and round
MOST_IMAGES = 1_000_000  # per batch

DTYPES = {"float32": torch.float32, "bf16": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Protocol:
    """Rounds, local epochs and local SGD.

    `schedule` sets the learning rate per round: `cosine` decays it from `lr` to 0 over the rounds as torch's
    `CosineAnnealingLR` does, `multistep` multiplies it by `factor` at each round in `milestones` (a milestone of 40
    first affects the 41st round, as in `MultiStepLR`). `augment` names the steps of `data.augment`. `precision` bf16 is
    autocast with float32 weights. `last_batch: keep` also trains on a short last batch of an epoch, as the papers do.
    SGD momentum buffers restart every round. `eval_every` is the number of rounds between evaluations; the last round
    is always evaluated.

    `sampling` draws the participants of a round: `fixed` draws the share `participation` of the clients, `poisson`
    draws each client independently with that probability, so a round may have none.

    `validation` > 0 makes the cell a trial: each client holds out that share of its training images, and all scores are
    computed on these (`data.held_out`). Test images are not used at all.
    """

    rounds: int = 20
    local_epochs: int = 5
    batch_size: int = 32
    lr: Annotated[float, choice(0.005, 0.01, 0.05, 0.1, 0.5, 0.8, 1.0, source="SphereFed 2022, App. F.2")] = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-5
    schedule: Literal["constant", "cosine", "multistep"] = "constant"
    milestones: tuple[int, ...] = ()
    factor: float = 0.1
    augment: Literal["none", "crop_flip", "crop_flip_autoaugment", "autoaugment", "flip_rotate"] = "none"
    precision: Literal["float32", "bf16", "float64"] = "float32"
    last_batch: Literal["keep", "drop"] = "keep"
    eval_every: int = 1
    validation: float = later(0.0)
    sampling: Literal["fixed", "poisson"] = later("fixed")

    def __post_init__(self) -> None:
        for name in ("rounds", "local_epochs", "batch_size", "eval_every"):
            require(getattr(self, name) >= 1, f"protocol.{name}", "must be at least 1", getattr(self, name))
        require(self.rounds <= MOST_ROUNDS, "protocol.rounds", f"must be at most {MOST_ROUNDS:,}", self.rounds)
        epochs = self.local_epochs
        require(epochs <= MOST_EPOCHS, "protocol.local_epochs", f"must be at most {MOST_EPOCHS:,}", epochs)
        require(
            self.batch_size <= MOST_IMAGES, "protocol.batch_size", f"must be at most {MOST_IMAGES:,}", self.batch_size
        )
        require(self.lr > 0, "protocol.lr", "must be positive", self.lr)
        require(0 <= self.momentum < 1, "protocol.momentum", "must lie in [0, 1)", self.momentum)
        require(self.weight_decay >= 0, "protocol.weight_decay", "must not be negative", self.weight_decay)
        require(0 <= self.validation < 1, "protocol.validation", "must lie in [0, 1); 0 is no trial", self.validation)
        require(self.factor > 0, "protocol.factor", "must be positive", self.factor)
        rising = all(a < b for a, b in pairwise((0, *self.milestones)))
        require(rising, "protocol.milestones", "must be rising rounds from 1 on", list(self.milestones))
        if self.schedule == "multistep":
            require(bool(self.milestones), "protocol.milestones", "must name a round for schedule=multistep", [])
        else:
            rule = "is for protocol.schedule=multistep alone"
            require(not self.milestones, "protocol.milestones", rule, list(self.milestones))
            require(self.factor == type(self).factor, "protocol.factor", rule, self.factor)

    def lr_at(self, round: int) -> float:
        """Return the learning rate of a round, counted from 0."""
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * round / self.rounds)) / 2
        if self.schedule == "multistep":
            return self.lr * self.factor ** sum(round >= milestone for milestone in self.milestones)
        return self.lr

    @property
    def trial(self) -> bool:
        """Whether the cell is a trial, scored on held-out training images."""
        return self.validation > 0

    def what(self) -> dict[str, Any]:
        """Return the settings that enter the cell key."""
        return what_of(self)

    def settings(self) -> dict[str, Any]:
        """Return all settings."""
        return dataclasses.asdict(self)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""
        return DTYPES[self.precision]
