"""Keyed randomness: every draw has a name, so results do not depend on order, workers or resumption."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes


def key(seed: int, purpose: str, *where: int | str) -> int:
    """Return 63 bits of sha256(seed, purpose, where...); `where` is usually (round, client)."""
    text = "|".join(str(part) for part in (seed, purpose, *where))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, purpose: str, *where: int | str) -> torch.Generator:
    """Return a CPU generator for one named purpose; PyTorch seeds it with the lower 32 bits of the key."""
    return torch.Generator().manual_seed(key(seed, purpose, *where))


def numpy_generator(seed: int, purpose: str, *where: int | str) -> np.random.Generator:
    """Return a NumPy generator for one named purpose."""
    return np.random.Generator(np.random.PCG64(key(seed, purpose, *where)))


@contextmanager
def global_rng(seed: int, purpose: str, *where: int | str) -> Iterator[None]:
    """Seed torch's global generators in use inside the block (for `nn.Module` initialisers), then restore the CPU's.

    `torch.manual_seed` would also format the call stack for each accelerator that is not in use.
    """
    state, number = torch.get_rng_state(), key(seed, purpose, *where)
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)
    try:
        yield
    finally:
        torch.set_rng_state(state)


def global_state() -> tuple[Any, ...]:
    """Return the states of the global generators of torch (CPU), NumPy and Python, which no draw may depend on."""
    state: dict[str, Any] = np.random.get_state(legacy=False)  # noqa: NPY002 - only read
    drawn = state["state"]["key"].tobytes(), state["state"]["pos"], state["has_gauss"], state["gauss"]
    with _disable_current_modes():  # the meter's would count the state among the tensors of a step
        return torch.get_rng_state().numpy().tobytes(), drawn, random.getstate()
