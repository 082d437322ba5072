"""Settings of commands that accept only a few."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from typing import Any

from fedspan.benchmark.errors import UserError, did_you_mean
from fedspan.benchmark.spec.compose import resolve
from fedspan.benchmark.spec.overrides import settings_of


def accepted(words: Iterable[str], known: Collection[str], why: str) -> dict[str, Any]:
    """Return the configuration with the settings in `words`; raise `UserError` with the reason `why` for unknown ones.

    ``dataset.*`` in `known` matches all settings of the dataset.
    """
    settings = settings_of(words)
    config = resolve(settings)  # imports the files of plugins=, and rejects names that are no settings
    for name in settings:
        if not any(fnmatchcase(name, one) for one in known):
            raise UserError(f"{why}, so '{name}' cannot be set{did_you_mean(name, known)}")
    return config
