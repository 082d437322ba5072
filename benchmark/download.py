"""The server's view when it writes to a single client."""

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
    """One `client`'s download as seen by `message`, before the client trains in a `round` (from 0).

    `sent` maps clients to the weights that each sent last, as received: that round's global weights plus the client's
    delta. Clients that have sent none are missing. `params` are the global weights, `server` is this component's server
    tree. `rng` is a CPU generator keyed by seed, hook, component, round and client.
    """

    client: int
    sent: Mapping[int, Tree]
    params: Mapping[str, Tensor]
    server: Mapping[str, Tensor]
    protocol: Protocol
    round: int
    rng: torch.Generator
