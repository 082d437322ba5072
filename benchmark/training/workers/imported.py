"""All that a worker imports; the server that workers are forked from imports this."""

from fedspan.benchmark.registry import discover
from fedspan.benchmark.training.workers import resident

__all__ = ["resident"]

discover()
