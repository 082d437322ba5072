"""Choices of each setting, found without importing plugins: each plugin, preset or board is a file of its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedspan.benchmark.places import packaged
from fedspan.benchmark.spec.settings import SCALES, how_defaults, what_defaults

FOLDERS = {
    "dataset": ("tasks", "datasets"),
    "partition": ("tasks", "partitions"),
    "fleet": ("tasks", "fleets"),
    "model": ("tasks", "models"),
    "algorithm": ("methods", "algorithms"),
    "addons": ("methods", "addons"),
    "protocol": ("leaderboards", "protocols"),
    "board": ("leaderboards", "boards"),
}
FURTHER = {"board": ("leaderboards", "frozen")}
WORDS = {  # choices that are no files
    "executor": ("graph", "loop", "vmap"),
    "launcher": ("basic", "joblib", "ray", "submitit", "submitit_local"),
    "numerics": ("native", "portable"),
    "protocol": ("default",),
    "scale": SCALES,
}
HELPERS = ("cifar", "layers")  # shared code, not plugins


def names(setting: str) -> list[str]:
    """Return the choices of a setting among those shipped with the package; none for settings that choose nothing."""
    folders = [kinds[setting] for kinds in (FOLDERS, FURTHER) if setting in kinds]
    files = (path for folder in folders for path in packaged(*folder).iterdir() if not path.name.startswith("_"))
    return sorted({*WORDS.get(setting, ()), *(path.stem for path in files)} - {*HELPERS})


def settings() -> list[str]:
    """Return every setting that is not a field of a plugin, protocol or diagnostic."""
    return sorted({*FOLDERS, *(name for name, _ in _flat({**what_defaults(), **how_defaults()}))})


def choices_text() -> str:
    """Return the choices and defaults shown by ``fedspan run --help``."""
    choices = [f"{setting}: {', '.join(names(setting))}" for setting in dict.fromkeys([*FOLDERS, *WORDS])]
    defaults = [f"{name}: {_text(value)}" for name, value in _flat({**what_defaults(), **how_defaults()})]
    return "\n".join(
        [
            "\nChoose with name=value; 'fedspan list' explains these and names those of installed plugins:\n",
            *choices,
            "\nSettings and their defaults; 'fedspan run --cfg job' shows those of a cell's plugins too:\n",
            *defaults,
            "",
        ]
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _text(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
