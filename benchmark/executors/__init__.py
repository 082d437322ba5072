"""Executors run the clients of a round. They give the same numbers and differ in speed only."""

from __future__ import annotations

from benchmark.errors import UserError, did_you_mean
from benchmark.executors.graph import Graph
from benchmark.executors.loop import Loop
from benchmark.executors.sums import RoundSums
from benchmark.executors.vmap import Vmap
from benchmark.local import LocalTrainer

EXECUTORS = {executor.name: executor for executor in (Loop, Graph, Vmap)}

__all__ = ["EXECUTORS", "Loop", "RoundSums", "make_executor"]


def make_executor(name: str, trainer: LocalTrainer) -> Loop:
    """Return the executor called `name`; raise `UserError` with a did-you-mean otherwise."""
    if name not in EXECUTORS:
        raise UserError(f"unknown executor '{name}'{did_you_mean(name, EXECUTORS)}")
    return EXECUTORS[name](trainer)
