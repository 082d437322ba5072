"""Say what takes long: a command is never silent for more than `PATIENCE` seconds in front of a person."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 2.0  # seconds


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Say on a terminal what the block does if it takes longer than `PATIENCE`; files and pipes get nothing."""
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
