"""What a pool asks of its workers, whether they are processes of this machine or actors of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from fedspan.benchmark.training.workers.messages import Packed

SLOTS = 2  # calls that a worker has at a time: the one it makes, and the next

Said = tuple[str, Any]  # what a worker says: ready and its papers, refused and why, done and a report, or died


class Crew(Protocol):
    """Workers, none at first. A worker is whatever `start` returns."""

    workers: list[Any]

    def start(self) -> Any:
        """Start a worker."""

    def engage(self, worker: Any, setup: Any) -> None:
        """Have a worker prepare a cell; it says `ready` or `refused`."""

    def tell(self, news: Packed) -> Any:
        """Put news where all workers see them; return what `pass_on` takes. No worker may be at work."""

    def pass_on(self, worker: Any, told: Any) -> None:
        """Have a worker hear the news."""

    def give(self, worker: Any, call: Packed) -> None:
        """Give a worker a call to make, after those that it has: at most `SLOTS` in all."""

    def listen(self, wait: bool) -> Iterable[tuple[Any, Said]]:
        """Yield what workers have to say, after waiting until one has, or not."""

    def dismiss(self, worker: Any) -> None:
        """End a worker."""

    def close(self) -> None:
        """End all workers."""
