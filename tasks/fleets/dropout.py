"""Clients that drop out."""

from collections.abc import Sequence

from fedspan.benchmark.errors import require
from fedspan.benchmark.fleet import Draws, Fleet, Turn, Work, fleet


@fleet("dropout")
class Dropout(Fleet):
    """Each client drops out after its local training with probability `rate`, drawn every round (Bonawitz et al. 2019).

    It has received the model and trained, but no result arrives. Bonawitz et al. saw 6% to 10% of a round's devices
    drop out.
    """

    title = "Dropout"
    summary = "Clients drop out after local training, and their updates never arrive."
    papers = ("bonawitz2019",)
    identifying = ("rate",)

    rate: float = 0.1

    def __post_init__(self) -> None:
        require(0 <= self.rate < 1, "fleet.rate", "must lie in [0, 1): at 1 nothing would ever arrive", self.rate)

    def turns(self, work: Sequence[Work], draws: Draws) -> Sequence[Turn]:
        return [Turn(arrives=bool(draws.of_visit("lost", one.client).random() >= self.rate)) for one in work]
