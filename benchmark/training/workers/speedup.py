"""How much faster a round is on several workers: a formula, and a simulation that it is held to.

A round cannot be shorter than its largest client, than its work divided by the workers, nor than what this process
does alone: telling the workers the weights, and adding what each client hands back. Longest first comes so close to
the largest of these that the formula is their maximum.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from fedspan.benchmark.training.workers.schedule import Schedule


def round_seconds(clients: Sequence[float], workers: int, tell: float = 0.0, add: float = 0.0) -> float:
    """Return the expected seconds of a round whose clients take `clients` each.

    `tell` is what it takes until the workers have the weights, `add` what it takes to add one client's result.
    """
    return tell + max(max(clients) + add, sum(clients) / workers, len(clients) * add)


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


def speedup(clients: Sequence[float], workers: int) -> float:
    """Return how many times as fast as one worker so many are at most, given what each client of a round costs."""
    return sum(clients) / round_seconds(clients, workers)
