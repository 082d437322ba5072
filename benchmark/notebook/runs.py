"""`fedspan.run`: the command `fedspan run`, from Python."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from joblib.externals.loky import get_reusable_executor

from fedspan.benchmark import numerics
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.notebook.frames import OWN, frame_of, plain
from fedspan.benchmark.records import provenance
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.registry import broken, reload_edited
from fedspan.benchmark.running.grid import run_grid
from fedspan.benchmark.running.hydra_jobs import make_launcher
from fedspan.benchmark.running.launchers import launcher_words
from fedspan.benchmark.spec.plan import PlannedCell, plan_grid
from fedspan.benchmark.spec.settings import How, labels_alone, several_ways
from fedspan.benchmark.spec.studies import studies_of
from fedspan.benchmark.training.process import numerics_of, restored


def run(
    settings: Mapping[str, Any] | None = None,
    /,
    *,
    over: Mapping[str, Iterable[Any]] | None = None,
    results: str | Path = OWN,
    workers: int = 1,
    **named: Any,
) -> pd.DataFrame:
    """Train the cells of the given settings and return their results, one row per cell (see `fedspan.results`).

    Settings are those of ``fedspan run``. Write a dot as two underscores, or pass the settings as a mapping:
    ``run(algorithm="fedprox", algorithm__mu=0.01)`` and ``run({"algorithm": "fedprox", "algorithm.mu": 0.01})`` are
    equivalent. `over` maps settings to the values of a grid:
    ``over={"algorithm": ["fedavg", "moon"], "seed": range(3)}``.

    Records go to the folder `results`, by default your own, which no published ranking reads. Cells with a record there
    are not trained again; plugin files edited since the last run are reimported. A broken file in a folder of plugins
    is a warning. With `workers` > 1, that many processes run cells at a time. Raises `UserError` for invalid settings.
    A failed cell is a row with the status ``failed`` and its reason. A trial (``protocol.validation``) is a row with
    the stage ``validation``: its accuracy is on held-out images.
    """
    for said, value in (("settings", settings or {}), ("over", over or {})):
        if not isinstance(value, Mapping):
            raise UserError(f"{said} must be a mapping of settings, got {value!r}; write run(algorithm='fedprox')")
    given = _given(settings or {}, named)
    given = {"tracking": False, "workers": workers} | given | {"paths.results": str(results)}
    grid = {name: _values(name, values) for name, values in (over or {}).items()}
    if twice := given.keys() & grid:
        raise UserError(f"'{min(twice)}' is given twice, as a setting and in `over`")
    axes = {name: [value] for name, value in given.items()} | grid
    try:
        reload_edited()
    finally:
        provenance.forget()
    if studies_of(axes):
        raise UserError(f"board={axes['board'][0]} tunes its methods; run 'fedspan run board=NAME' in a terminal")
    planned = plan_grid(axes)
    for said in (*labels_alone(axes), *(one.text for one in broken())):
        warnings.warn(said, stacklevel=2)
    how = _possible_here(planned)
    try:
        with restored():
            run_grid(planned, make_launcher(launcher_words(how)))
    finally:
        get_reusable_executor().shutdown()  # its workers would keep this run's code, folder, environment, commit
    place, keys = Results(how.results), [one.cell.key for one in planned]
    found = (record for key in keys if (record := place.read(key) or place.failure(key)) is not None)
    return frame_of(place, found, trials=True)


def _given(settings: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a mapping and of arguments, whose names have two underscores for a dot."""
    dotted = {name.replace("__", "."): value for name, value in named.items()}
    if twice := dotted.keys() & settings.keys():
        raise UserError(f"'{min(twice)}' is given twice, in the mapping and as an argument")
    given = {name: plain(value) for name, value in {**settings, **dotted}.items()}
    if "paths.results" in given:
        raise UserError(f"write results={str(given['paths.results'])!r}, not paths__results")
    return given


def _possible_here(planned: Sequence[PlannedCell]) -> How:
    """Return how the cells run; raise `UserError` if they need other numerics than this process has."""
    how = How.of(planned[0].config)
    if how.device == "cpu" and any(numerics_of(one.cell, how) == numerics.NATIVE for one in planned):
        numerics.check_native()
    return how


def _values(name: str, values: Any) -> list[Any]:
    """Return the values of an axis, NumPy's converted to Python's; raise `UserError` if there are none."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise UserError(f"over['{name}'] must list values, got {values!r}; write [{values!r}]")
    if not (listed := list(map(plain, values))):
        raise UserError(f"over['{name}'] has no values")
    if said := several_ways(name, listed):
        raise UserError(f"over['{name}']: {said}")
    return listed
