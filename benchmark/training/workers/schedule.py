"""Schedule of a round's jobs, longest first among those whose results can be held, and its expected time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


class Schedule:
    """Schedule of jobs 0 .. n - 1, longest first; none starts `window` or more places before its turn.

    Results are taken in numerical order, so at most `window` of them wait, whatever the costs. `turn` is the number of
    the first job whose result has not been taken.
    """

    def __init__(self, costs: Sequence[float], window: int) -> None:
        self.costs, self.window = costs, max(window, 1)
        self.left = len(costs)  # jobs not handed out
        self._queue: list[tuple[float, int]] = []
        self._queued = 0  # jobs from this number on have never been queued

    def take(self, turn: int) -> int | None:
        """Return the next job to start; None if all remaining ones must wait."""
        last = min(turn + self.window, len(self.costs))
        for number in range(self._queued, last):
            self.put_back(number, new=True)
        self._queued = max(self._queued, last)
        if not self._queue:
            return None
        self.left -= 1
        return heapq.heappop(self._queue)[1]

    def put_back(self, number: int, new: bool = False) -> None:
        """Queue a job, for example again after its worker has died."""
        heapq.heappush(self._queue, (-self.costs[number], number))
        self.left += not new


def round_seconds(clients: Sequence[float], workers: int) -> float:
    """Return a lower bound on the seconds of a round whose clients take the seconds in `clients`.

    No round is shorter than its longest client, or its work divided by the workers. Longest first exceeds the larger of
    these by less than one client (Graham 1969, Bounds on Multiprocessing Timing Anomalies).
    """
    return max(max(clients), sum(clients) / workers)
