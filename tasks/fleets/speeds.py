"""Clients of different speeds."""

import math
from collections.abc import Sequence

from fedspan.benchmark.errors import require
from fedspan.benchmark.fleet import Draws, Fleet, Turn, Work, fleet


@fleet("speeds")
class Speeds(Fleet):
    """Each client computes and communicates at its own constant speed; late updates are lost (ours 2026).

    A client's seconds per local step are log-normal, with median `step_seconds` and standard deviation `step_spread` of
    the logarithm; likewise its seconds per byte, down and up, with `byte_seconds` and `byte_spread`. A round lasts
    until its slowest client has sent its update. With a `deadline` in seconds the server closes the round at that time,
    as in Nishio and Yonetani 2019 (FedCS): later updates are lost, and a round that waits for one lasts as long as the
    deadline. 0 means no deadline. All times are simulated, from the numbers of steps and bytes alone: a step costs the
    same whatever the method computes in it, and passes before training and calibration cost nothing.
    """

    title = "Speeds"
    summary = "Clients compute and communicate at their own speeds; late updates are dropped."
    papers = ("nishio2019",)
    wording = {"deadline": {0.0: "no deadline"}}

    step_seconds: float = 0.1
    step_spread: float = 1.0
    byte_seconds: float = 1e-6
    byte_spread: float = 1.0
    deadline: float = 0.0

    def __post_init__(self) -> None:
        for name in ("step_seconds", "step_spread", "byte_seconds", "byte_spread"):
            require(getattr(self, name) >= 0, f"fleet.{name}", "must not be negative", getattr(self, name))
        require(self.deadline >= 0, "fleet.deadline", "must not be negative; 0 is no deadline", self.deadline)

    def turns(self, work: Sequence[Work], draws: Draws) -> Sequence[Turn]:
        return [self._timed(self._seconds(one, draws)) for one in work]

    def _seconds(self, work: Work, draws: Draws) -> float:
        """Return a client's seconds from the first byte received to the last byte sent."""
        slow, far = draws.of_client("speed", work.client).standard_normal(2)
        step = self.step_seconds * math.exp(self.step_spread * slow)
        byte = self.byte_seconds * math.exp(self.byte_spread * far)
        return work.steps * step + (work.down + work.up) * byte

    def _timed(self, seconds: float) -> Turn:
        late = bool(self.deadline) and seconds > self.deadline
        return Turn(arrives=not late, seconds=self.deadline if late else seconds)
