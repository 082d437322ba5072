"""Early end of a cell: on a signal, as clusters send before they kill, or when its time is over."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

GRACE = 20.0  # seconds to finish the round; clusters kill 30 seconds after the signal


class Stopped(KeyboardInterrupt):
    """A cluster's signal arrived: the cell is saved after its round, and the same command resumes it."""


class TimedOut(Exception):
    """The cell took longer than `timeout`."""


def of_clusters() -> set[int]:
    """Return the signals after which a cell must end: SIGTERM, and the one that submitit asks SLURM for."""
    name = os.environ.get("SUBMITIT_PREEMPT_SIGNAL", "USR2")
    return {signal.SIGTERM, getattr(signal, f"SIG{name}", signal.SIGTERM)}


class Stop:
    """Flag: whether the cell running in this process should end."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.started = time.monotonic()
        self.asked = False

    def check(self) -> None:
        """Raise `Stopped` after a signal, `TimedOut` after `seconds`."""
        if self.asked:
            raise Stopped
        if self.seconds is not None and time.monotonic() - self.started >= self.seconds:
            raise TimedOut(f"timed out after {self.seconds:g} s; a longer timeout resumes it")

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Set `asked`, which is checked after the round; if the round takes longer than `GRACE`, the alarm ends it."""
        self.asked = True
        signal.setitimer(signal.ITIMER_REAL, GRACE, 1.0)

    def on_alarm(self, number: int, frame: FrameType | None) -> None:
        """Interrupt whatever Python is doing: a round that takes too long, or a plugin that never returns."""
        self.check()


def _stop_now(number: int, frame: FrameType | None) -> None:
    """Handle a signal by raising `Stopped`."""
    raise Stopped


@contextlib.contextmanager
def handling(handlers: Mapping[int, Callable[[int, FrameType | None], None]]) -> Iterator[None]:
    """Handle signals inside the block; outside the main thread, where Python has no handlers, do nothing."""
    main = threading.current_thread() is threading.main_thread()
    before: dict[int, Any] = {number: signal.signal(number, handlers[number]) for number in handlers if main}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def until_stopped() -> contextlib.AbstractContextManager[None]:
    """Raise `Stopped` in the block on SIGTERM, and when the terminal closes, unless SIGHUP is ignored (nohup)."""
    numbers = [signal.SIGTERM] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGTERM, signal.SIGHUP]
    return handling(dict.fromkeys(numbers, _stop_now))


@contextlib.contextmanager
def _callers_alarm_later() -> Iterator[None]:
    """Put an alarm that the caller has set off until after the block, less the time that the block took."""
    started = time.monotonic()
    seconds, every = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        if seconds:
            signal.setitimer(signal.ITIMER_REAL, max(seconds - (time.monotonic() - started), 0.001), every)


@contextlib.contextmanager
def stopping(seconds: float | None = None) -> Iterator[Stop]:
    """Yield a flag that a cluster's signal sets, and raise `TimedOut` after `seconds`; both in the main thread only.

    The alarm repeats because an exception raised inside a destructor or the callback of a weak reference is lost.
    Python would print its traceback; this is suppressed, as the next alarm ends the cell. Raises `Stopped` at the end
    if the signal came but the cell ended by itself: the signal is meant for the cells that follow too.
    """
    stop = Stop(seconds)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    report = sys.unraisablehook
    handlers = {**dict.fromkeys(of_clusters(), stop.on_signal), signal.SIGALRM: stop.on_alarm}
    with _callers_alarm_later(), handling(handlers):
        sys.unraisablehook = lambda lost: None if isinstance(lost.exc_value, (Stopped, TimedOut)) else report(lost)
        try:
            if seconds is not None:
                signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
            yield stop
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            sys.unraisablehook = report
    if stop.asked:
        raise Stopped
