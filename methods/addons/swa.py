"""SWA on the server."""

import math
from collections.abc import Mapping
from typing import Annotated

from torch import Tensor

from fedspan.benchmark.component import Aggregate, Component, addon
from fedspan.benchmark.errors import require
from fedspan.benchmark.search import choice, fixed
from fedspan.benchmark.tree import Tree, sub, tree_map


@addon("swa")
class SWA(Component):
    """Caldarola et al. 2022 (ECCV): the final model is the mean of the global models of the last rounds.

    After the share `start` of all rounds (0.75 in the paper), the mean includes the global model of every `every`-th
    round, counted back from the last. Training continues from the current model; the mean replaces it in the last
    round, so only that point of the curve shows it. A round in which no update arrives counts too, with the model of
    the round before. The paper also cycles the clients' learning rate within every `every` rounds (10 or 20); here the
    protocol's schedule holds.

    Only weights are averaged. BatchNorm's running statistics are those of the last round, not of the mean model, and
    the server has no images to re-estimate them; the models of the paper's released code have none.
    """

    title = "Server SWA"
    summary = "The final model is the mean of the last rounds' global models."
    papers = ("caldarola2022",)
    version = 2  # 1 skipped rounds in which nothing arrived, and then counted the initial weights as a model
    every_round = True
    wording = {"start": "after {:.0%} of the rounds", "every": "every {} rounds"}

    start: Annotated[float, choice(0.25, 0.5, 0.75, source="ours, up to the paper's 0.75")] = 0.75
    every: Annotated[int, fixed("it belongs to the schedule")] = 1
    neutral = {"start": 1.0}

    def __post_init__(self) -> None:
        require(0 <= self.start <= 1, "addon.swa.start", "must lie in [0, 1]", self.start)
        require(self.every >= 1, "addon.swa.every", "must be at least 1", self.every)

    def init(
        self, params: Mapping[str, Tensor], shared: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> tuple[Tree, Tree]:
        return dict(shared), {}

    def _first(self, rounds: int) -> int:
        """Return the first round, counted from 1, whose model may be averaged."""
        return math.floor(self.start * rounds + 1e-9) + 1  # 0.29 of 100 is 28.999999999999996

    def server(self, delta: Tree, agg: Aggregate) -> tuple[Tree, Tree]:
        rounds, now, mean = agg.protocol.rounds, agg.round + 1, dict(agg.server)
        first = self._first(rounds)
        if now < first or (rounds - now) % self.every:
            return delta, mean
        before = (now - first) // self.every
        mean = tree_map(lambda m, w, d: m + (w + d - m) / (before + 1), mean, agg.params, delta)
        return (delta | sub(mean, agg.params) if now == rounds else delta), mean
