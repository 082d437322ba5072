"""Runs a command, and ends it with all that it started when this process's input is closed or it gets a signal.

Whoever starts it holds the other end of the input, so that nothing is left even if that process is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

GRACE = 5.0  # seconds that the command has to end by itself
PAUSE = 0.2  # seconds between two looks at it


def run(command: Sequence[str]) -> int:
    """Run the command in a process group of its own; return its exit status."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def end(*_: object) -> None:
        _signal(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE)
        _signal(child.pid, signal.SIGKILL)

    def read() -> None:
        sys.stdin.read()
        end()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: threading.Thread(target=end).start())
    threading.Thread(target=read, daemon=True).start()
    try:
        return wait_for(child)
    finally:
        _signal(child.pid, signal.SIGKILL)  # what is left of its group


def wait_for(process: subprocess.Popen[bytes]) -> int:
    """Return a process's exit status when it ends, and run handlers of signals meanwhile.

    A signal that arrives just before a call that blocks, or in another thread, does not interrupt that call.
    """
    while (status := process.poll()) is None:
        time.sleep(PAUSE)
    return status


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
