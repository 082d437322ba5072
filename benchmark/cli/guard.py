"""Guard of a command: ends the command's process group when standard input closes or a signal arrives.

The process that starts the guard holds the other end of the input, so nothing is left even if that process is killed.
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

GRACE = 5.0  # seconds for the command to exit after SIGTERM
PAUSE = 0.2  # seconds between polls


def run(command: Sequence[str]) -> int:
    """Run the command in its own process group; return its exit status."""
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
        _signal(child.pid, signal.SIGKILL)  # the rest of its group


def wait_for(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process and return its exit status; signal handlers run meanwhile.

    It polls because a signal that arrives just before a blocking call, or in another thread, does not interrupt it.
    """
    while (status := process.poll()) is None:
        time.sleep(PAUSE)
    return status


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
