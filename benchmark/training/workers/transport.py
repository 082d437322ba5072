"""What a pool asks of its workers, whether they are processes of this machine or actors of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from fedspan.benchmark.training.workers.messages import Packed
from fedspan.benchmark.training.workers.replies import Reply

SLOTS = 2  # calls that a worker has at a time: the one that it makes, and the next


class Worker(Protocol):
    """A worker as its driver sees it."""

    calls: list[int]  # the numbers of those that it has, in order
    ready: bool  # whether it has prepared the cell

    def hear(self, published: Any) -> None:
        """Have it take over what `Transport.publish` returned, before the calls that it is given from now on."""

    def give(self, number: int, call: Packed) -> None:
        """Queue a call behind those it has: `SLOTS` at most."""

    def answers(self, lent: int | None) -> Sequence[tuple[int, Reply]]:
        """Return number and reply of the calls that it has made, after `listen`; raise `EOFError` if it has died.

        The tensors of the reply to the call `lent` may lie in memory that its next call overwrites.
        """

    def close(self) -> None:
        """End it, whatever it does."""


class Transport(Protocol):
    """Where workers come from, and what they share."""

    def start(self) -> Any:
        """Return a new worker; raise `OSError` if there can be none."""

    def publish(self, news: Packed) -> Any:
        """Put news in place of those before where every worker can read them; no worker may be at work."""

    def listen(self, workers: Iterable[Any], wait: bool) -> Iterable[Any]:
        """Yield those who have something to say, or have died; `wait` until there is one, or not."""

    def close(self) -> None:
        """Free what the workers, which have ended, shared."""
