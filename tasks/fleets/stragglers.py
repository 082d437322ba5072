"""Clients that do not finish their local work."""

from collections.abc import Sequence
from typing import Literal

from fedspan.benchmark.errors import require
from fedspan.benchmark.fleet import WHOLE, Draws, Fleet, Turn, Work, fleet
from fedspan.benchmark.task import share_of


@fleet("stragglers")
class Stragglers(Fleet):
    """In each round a random `share` of the clients does only part of its local work (Li et al. 2020, Sec. 5.2).

    In FedProx's paper the number of a straggler's epochs is uniform from 1 to the protocol's (in its code to one less,
    so that none finishes); the shares tested are 0, 0.5 and 0.9. There FedAvg drops stragglers (``dropped=true``) and
    FedProx keeps their partial work. Wang et al. 2020 (FedNova) draw the epochs of all clients, from 2 to 5 (``share=1
    least=2``). ``unit=steps`` draws the number of steps, from `least` to all, for protocols of a single epoch. The
    epochs of a method with several phases count in their order: a straggler under FedRep may train its head alone.
    """

    title = "Stragglers"
    summary = "A random share of each round's clients takes only part of its local steps."
    papers = ("li2020", "wang2020")
    wording = {"unit": {"epochs": "", "steps": "in steps"}, "dropped": {False: "", True: "dropped"}}
    identifying = ("share",)

    share: float = 0.9
    least: int = 1
    unit: Literal["epochs", "steps"] = "epochs"
    dropped: bool = False

    def __post_init__(self) -> None:
        require(0 <= self.share <= 1, "fleet.share", "must lie in [0, 1]", self.share)
        require(self.least >= 1, "fleet.least", "must be at least 1", self.least)

    def turns(self, work: Sequence[Work], draws: Draws) -> Sequence[Turn]:
        order = draws.of_round("stragglers").permutation(len(work))
        slow = set(order[: share_of(len(work), self.share)].tolist())
        return [self._cut(one, draws) if place in slow else WHOLE for place, one in enumerate(work)]

    def _cut(self, work: Work, draws: Draws) -> Turn:
        unit = work.steps_per_epoch if self.unit == "epochs" else 1
        whole = work.steps // unit
        units = draws.of_visit("part of the steps", work.client).integers(min(self.least, whole), whole, endpoint=True)
        return Turn(steps=int(units) * unit if units < whole else None, arrives=not self.dropped)
