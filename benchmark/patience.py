"""Messages about slow steps: on a terminal, no command stays silent for more than `PATIENCE` seconds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 2.0  # seconds


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Print `what` to a terminal if the block takes longer than `PATIENCE`; print nothing to files and pipes."""
    if not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(PATIENCE, print, [f"{what} ..."], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
