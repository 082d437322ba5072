"""Executors train the clients of a round. They give the same numbers, up to rounding, at different speeds."""

from __future__ import annotations

from fedspan.benchmark.errors import UserError, did_you_mean
from fedspan.benchmark.training.executors.graph import Graph
from fedspan.benchmark.training.executors.loop import Loop
from fedspan.benchmark.training.executors.vmap import Vmap

EXECUTORS = {executor.name: executor for executor in (Loop, Graph, Vmap)}

__all__ = ["EXECUTORS", "executor_of"]


def executor_of(name: str) -> type[Loop]:
    """Return the executor called `name`; raise `UserError` with a suggestion if it is unknown."""
    if name not in EXECUTORS:
        raise UserError(f"unknown executor '{name}'{did_you_mean(name, EXECUTORS)}")
    return EXECUTORS[name]
