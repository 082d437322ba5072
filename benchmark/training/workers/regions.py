"""Memory that two processes of one machine see."""

from __future__ import annotations

import mmap
import os
import tempfile

import torch
from torch import Tensor


class Region:
    """Shared memory that grows. It has no name, so that nothing is left of it when its last process ends, however.

    It does not lie in /dev/shm, which containers limit to 64 MiB. `handle` is the file descriptor of another
    process's region; without one the region is new.
    """

    def __init__(self, handle: int | None = None) -> None:
        self.handle = _nameless_file() if handle is None else handle
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def of(self, size: int) -> Tensor:
        """Return its first `size` bytes, uint8 [size]; it grows if it is smaller."""
        if size > len(self._bytes):
            if os.fstat(self.handle).st_size < size:
                os.ftruncate(self.handle, size)
            whole = mmap.mmap(self.handle, os.fstat(self.handle).st_size)
            self._bytes = torch.frombuffer(whole, dtype=torch.uint8)
        return self._bytes[:size]

    def close(self) -> None:
        """Let go of it; what was taken of it stays readable."""
        os.close(self.handle)


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedspan")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
