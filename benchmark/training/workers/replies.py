"""A worker's reply to a call: its outcome and its cost."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from typing import Any

from fedspan.benchmark.contract import blame
from fedspan.benchmark.training.meter import Meter


@dataclass(frozen=True)
class Reply:
    """Outcome of a call, `value` or `error`, with its FLOPs, memory peaks and processor seconds.

    `peak_memory` is the peak of a GPU's allocator so far.
    """

    value: Any
    error: Any
    flops: dict[str, int]
    memory: dict[str, int]
    peak_memory: int
    flops_of_step: dict[str, int]
    seconds: float

    def book(self, meter: Meter) -> None:
        """Add the counts to the driver's meter."""
        for purpose, number in self.flops.items():
            meter.flops[purpose] = meter.flops.get(purpose, 0) + number
        for purpose, most in self.memory.items():
            meter.memory[purpose] = max(meter.memory.get(purpose, 0), most)
        meter.peak_memory = max(meter.peak_memory, self.peak_memory)
        meter.flops_of_step = self.flops_of_step | meter.flops_of_step
        meter.worker_seconds += self.seconds


def reply_of(call: Callable[[], Any], meter: Meter) -> Reply:
    """Run a call and return its reply; `meter` counts it and must be empty before."""
    began, value, error = time.process_time(), None, None
    try:
        value = call()
    except (Exception, SystemExit) as raised:
        error = sendable(raised)
    return Reply(
        value,
        error,
        flops=meter.flops,
        memory=meter.memory,
        peak_memory=meter.peak_memory,
        flops_of_step=meter.flops_of_step,
        seconds=time.process_time() - began,
    )


def sendable(error: BaseException) -> ExceptionWithTraceback:
    """Return an error with its traceback as text and the plugin to blame, for a process without its frames."""
    blamed = blame(error)
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)
    if blamed:
        error.blamed = blamed  # type: ignore[attr-defined]
    return ExceptionWithTraceback(error, error.__traceback__)
