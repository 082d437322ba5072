"""Interface between a pool and its workers: processes of this machine or actors of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from fedspan.benchmark.training.workers.messages import Packed
from fedspan.benchmark.training.workers.replies import Reply

SLOTS = 2  # calls that a worker has at a time: the running one and the next


class Worker(Protocol):
    """A worker, from the driver's point of view."""

    calls: list[int]  # numbers of its calls, in order
    ready: bool  # whether it has prepared the cell

    def receive_state(self, published: Any) -> None:
        """Make it take over the result of `Transport.publish` before its subsequent calls."""

    def give(self, number: int, call: Packed) -> None:
        """Queue a call behind its existing ones; `SLOTS` at most in total."""

    def answers(self, lent: int | None) -> Sequence[tuple[int, Reply]]:
        """Return number and reply of its finished calls, after `listen`; raise `EOFError` if it has died.

        The tensors in the reply to the call `lent` may be in memory that its next call overwrites.
        """

    def close(self) -> None:
        """End it at once, even if busy."""


class Transport(Protocol):
    """Source of workers, and of the memory that they share."""

    def start(self) -> Any:
        """Return a new worker; raise `OSError` if none can be started."""

    def publish(self, state_message: Packed) -> Any:
        """Replace the previous message where every worker can read it; no worker may be busy."""

    def listen(self, workers: Iterable[Any], wait: bool) -> Iterable[Any]:
        """Yield the workers that have answered or died; with `wait`, block until there is one."""

    def close(self) -> None:
        """Free the shared resources, after all workers have ended."""
