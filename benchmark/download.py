"""What the server has at hand when it writes to a single client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedspan.benchmark.tree import Tree

if TYPE_CHECKING:
    from fedspan.benchmark.protocol import Protocol


@dataclass(frozen=True)
class Download:
    """One `client`'s download as `message` sees it, before the client trains in a `round` (from 0).

    `sent` has by client the weights that each sent last, as they arrived: those of its round plus its delta. Clients
    that have not sent any yet are missing. `params` are the global weights, `server` is this component's server tree.
    `rng` is a generator on the CPU, keyed by seed, component, round and client.
    """

    client: int
    sent: Mapping[int, Tree]
    params: Mapping[str, Tensor]
    server: Mapping[str, Tensor]
    protocol: Protocol
    round: int
    rng: torch.Generator
