"""Memory shared between a process and its forks."""

from __future__ import annotations

import mmap
import os
import weakref
from typing import Any

import torch
from torch import Tensor

from fedspan.benchmark.training.workers.messages import Packed, unpack

MessageExtent = tuple[int, int]  # end of a message in a region, and end of its tensors


class Region:
    """Growing shared memory. It has no name, so it is freed when its last process ends, however that happens.

    It is not in /dev/shm, which containers limit to 64 MiB.
    """

    def __init__(self) -> None:
        self._file = os.memfd_create("fedspan")
        self._closing = weakref.finalize(self, os.close, self._file)  # also if its worker could not be started
        self._closing.atexit = False
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def of(self, size: int) -> Tensor:
        """Return the first `size` bytes, uint8 [size], growing the region if necessary."""
        if size > len(self._bytes):
            if os.fstat(self._file).st_size < size:
                os.ftruncate(self._file, size)
            whole = mmap.mmap(self._file, os.fstat(self._file).st_size)
            self._bytes = torch.frombuffer(whole, dtype=torch.uint8)
        return self._bytes[:size]

    def put(self, message: Packed) -> MessageExtent:
        """Replace the previous message by a new one; return its extent, with which `get` reads it."""
        extent = message.size + len(message.head), message.size
        memory = self.of(extent[0])
        message.write(memory)
        memory[message.size :] = torch.frombuffer(bytearray(message.head), dtype=torch.uint8)
        return extent

    def get(self, extent: MessageExtent, residents: dict[str, Any] | None = None, copy: bool = False) -> Any:
        """Return the message of an extent; its tensors are views of this memory, or copies."""
        end, size = extent
        memory = self.of(end)
        return unpack(bytes(memory[size:].numpy()), memory, residents, copy)

    def close(self) -> None:
        """Close the file; tensors read from it stay valid."""
        self._closing()
