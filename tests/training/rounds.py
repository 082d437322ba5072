"""A round on several workers, event by event, to hold the formula of its seconds to."""

import heapq
from collections.abc import Sequence

from fedspan.benchmark.training.workers.schedule import Schedule


def simulated(clients: Sequence[float], workers: int) -> float:
    """Return the seconds of a round in which each worker that becomes free takes the next client."""
    schedule, now = Schedule(clients, len(clients)), 0.0
    busy: list[float] = []  # when each busy worker ends
    for _ in clients:
        if len(busy) == workers:
            now = heapq.heappop(busy)
        number = schedule.take(0)
        assert number is not None
        heapq.heappush(busy, now + clients[number])
    return max(busy)
