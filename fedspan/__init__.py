"""FedSpan: a declarative benchmark suite with a leaderboard for federated learning on heterogeneous clients.

From Python and notebooks: `run` trains cells, `results` and `curves` return data frames, `compare` compares two
methods, `plot_curves` and `plot_gains` return matplotlib figures.

`fedspan.benchmark` is the engine, `fedspan.methods` and `fedspan.tasks` are the plugins. In a checkout they are the
folders of the same names at its top level.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedspan.benchmark.notebook.comparison import Comparison, compare
    from fedspan.benchmark.notebook.frames import curves, results
    from fedspan.benchmark.notebook.plots import plot_curves, plot_gains
    from fedspan.benchmark.notebook.runs import run

__version__ = "0.2.0"

__all__ = ["Comparison", "compare", "curves", "plot_curves", "plot_gains", "results", "run"]

_MODULES: dict[str, tuple[str, ...]] = {"comparison": ("Comparison", "compare"), "frames": ("curves", "results")}
_MODULES |= {"plots": ("plot_curves", "plot_gains"), "runs": ("run",)}

_HERE = Path(__file__).parent
if not (_HERE / "benchmark").is_dir():  # a copy of a checkout that lost its symbolic links
    __path__.append(str(_HERE.parent))
importlib.import_module("fedspan.benchmark")  # prepares portable numerics before torch computes


def __getattr__(name: str) -> Any:
    """Import what is asked for, and torch with it, when it is first used."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"fedspan.benchmark.notebook.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
