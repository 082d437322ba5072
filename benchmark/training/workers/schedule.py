"""Which client goes out next, the longest of those whose results can be held; and what a round takes that way."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


class Schedule:
    """Hands out jobs 0 .. n - 1, the longest first; none goes out `window` or more places before its turn.

    Results are taken in the order of numbers, so that at most `window` of them wait, whatever the costs. `turn` is the
    number of the first job whose result has not been taken.
    """

    def __init__(self, costs: Sequence[float], window: int) -> None:
        self.costs, self.window = costs, max(window, 1)
        self.left = len(costs)  # that have not gone out
        self._queue: list[tuple[float, int]] = []
        self._queued = 0  # jobs from this number on have not been in the queue yet

    def take(self, turn: int) -> int | None:
        """Return the job to go out next; None if all that are left must wait."""
        last = min(turn + self.window, len(self.costs))
        for number in range(self._queued, last):
            self.put_back(number, new=True)
        self._queued = max(self._queued, last)
        if not self._queue:
            return None
        self.left -= 1
        return heapq.heappop(self._queue)[1]

    def put_back(self, number: int, new: bool = False) -> None:
        """Have a job wait, as one does whose worker has died."""
        heapq.heappush(self._queue, (-self.costs[number], number))
        self.left += not new


def round_seconds(clients: Sequence[float], workers: int, tell: float = 0.0, add: float = 0.0) -> float:
    """Return the expected seconds of a round whose clients take `clients` each.

    `tell` is what it takes until the workers have the weights, `add` what it takes to add one client's result. No round
    is shorter than its largest client, its work divided by the workers, or what the driver does alone. Longest first
    exceeds the largest of these by less than one client (Graham 1969, Bounds on Multiprocessing Timing Anomalies).
    """
    return tell + max(max(clients) + add, sum(clients) / workers, len(clients) * add)
