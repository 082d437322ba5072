"""FedSpan's engine: it trains, evaluates and records cells, and contains no plugins."""

from fedspan.benchmark import numerics

numerics.prepare()  # before torch computes anything, in every process that imports or unpickles a part of this package
