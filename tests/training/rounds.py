"""A round on several workers, event by event, to hold the formula of its seconds to."""

import heapq
from collections.abc import Sequence

from fedspan.benchmark.training.workers.schedule import Schedule


def simulated(
    clients: Sequence[float], workers: int, tell: float = 0.0, add: float = 0.0, window: int = 10**9
) -> float:
    """Return the seconds of a round, event by event: who is free takes the next client, results are added in order."""
    schedule, turn = Schedule(clients, window), 0
    now, driver = tell, tell  # when the next event is, when this process has added all that it has
    busy: list[tuple[float, int]] = []
    arrived: dict[int, float] = {}
    idle = workers
    while turn < len(clients):
        while idle and (number := schedule.take(turn)) is not None:
            heapq.heappush(busy, (now + clients[number], number))
            idle -= 1
        now, number = heapq.heappop(busy)
        idle += 1
        arrived[number] = now
        while turn in arrived:
            driver = max(driver, arrived.pop(turn), now) + add
            turn += 1
    return driver
