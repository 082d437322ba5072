"""Which client goes out next: the longest of those whose results can be held until their turn comes."""

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

    def take_turn(self, turn: int) -> int:
        """Return the job `turn`, which has not gone out."""
        if turn < self._queued:
            self._queue.remove((-self.costs[turn], turn))
            heapq.heapify(self._queue)
        self._queued = max(self._queued, turn + 1)
        self.left -= 1
        return turn

    def put_back(self, number: int, new: bool = False) -> None:
        """Have a job wait, as one does whose worker has died."""
        heapq.heappush(self._queue, (-self.costs[number], number))
        self.left += not new
