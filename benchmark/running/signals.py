"""Ends a cell early: a signal asks for it, as clusters send before they kill, or the cell's time is over."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

GRACE = 20.0  # seconds to end the round in; clusters kill 30 seconds after they ask


class Stopped(KeyboardInterrupt):
    """SIGTERM came: the cell is saved after its round, and the same command goes on with it."""


class TimedOut(Exception):
    """The cell took longer than `timeout`."""


class Stop:
    """Whether the cell that runs in this process should end."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.started = time.monotonic()
        self.asked = False

    def check(self) -> None:
        """Raise `Stopped` or `TimedOut` if it is time."""
        if self.asked:
            raise Stopped
        if self.seconds is not None and time.monotonic() - self.started >= self.seconds:
            raise TimedOut(f"timed out after {self.seconds:g} s; with a longer timeout it goes on where it stopped")

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Let the round end, after which somebody looks at `asked`; if that takes too long the alarm comes first."""
        self.asked = True
        signal.setitimer(signal.ITIMER_REAL, GRACE, 1.0)

    def on_alarm(self, number: int, frame: FrameType | None) -> None:
        """End whatever Python does now: a round that is too long, or a plugin that never comes back."""
        self.check()


@contextlib.contextmanager
def stopping(seconds: float | None = None) -> Iterator[Stop]:
    """Yield a flag that is set when the cell should end: on SIGTERM (in the main thread only), or after `seconds`.

    The alarm repeats, because an exception raised inside a destructor goes nowhere. Raises `Stopped` at the end if the
    signal came while the cell ended by itself: whoever sent it means the cells that follow too.
    """
    stop = Stop(seconds)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before: dict[int, Any] = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, stop.on_signal),
        signal.SIGALRM: signal.signal(signal.SIGALRM, stop.on_alarm),
    }
    try:
        if seconds is not None:
            signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
        yield stop
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
    if stop.asked:
        raise Stopped
