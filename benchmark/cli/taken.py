"""The settings of a command that takes only a few of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from typing import Any

from fedspan.benchmark.errors import UserError, did_you_mean
from fedspan.benchmark.spec.compose import resolve
from fedspan.benchmark.spec.overrides import settings_of


def taken(words: Iterable[str], known: Collection[str], why: str) -> dict[str, Any]:
    """Return the configuration of the settings in `words`; raise `UserError`, which says `why`, for one not `known`.

    ``dataset.*`` among the known stands for all settings of the dataset.
    """
    settings = settings_of(words)
    config = resolve(settings)  # imports the files of plugins=, and refuses what is no setting at all
    for name in settings:
        if not any(fnmatchcase(name, one) for one in known):
            raise UserError(f"{why}, so '{name}' cannot be set{did_you_mean(name, known)}")
    return config
