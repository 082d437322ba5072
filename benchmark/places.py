"""Where the package runs: its data and own files, in a checkout and in a wheel alike, its interpreter and cores."""

import os
import sys
from functools import cache
from pathlib import Path

import platformdirs

import fedspan

PACKAGE = Path(fedspan.__file__).parent


@cache
def packaged(*parts: str) -> Path:
    """Return the path of a file or folder of the package, e.g. ``packaged("leaderboards", "boards")``.

    Symbolic links in a checkout are resolved, so that errors name the file that a user edits.
    """
    inside = PACKAGE.joinpath(*parts)
    return inside.resolve() if inside.exists() else PACKAGE.parent.joinpath(*parts)


def interpreter() -> list[str]:
    """Return the command that starts Python without the working folder on its path, unless the package lies there.

    ``python -m`` puts that folder first, where a user's file would shadow a module of the same name.
    """
    return [sys.executable, *([] if PACKAGE.parent == Path.cwd() else ["-P"])]


def usable_cores() -> int:
    """Return the number of cores that this process may use, by its affinity and any quota of its container."""
    from joblib import cpu_count  # takes long to import, and few commands need it

    return int(cpu_count())


def data_root() -> Path:
    """Return the data folder used without ``paths.data``: FEDSPAN_DATA, else the platform's cache folder."""
    chosen = os.environ.get("FEDSPAN_DATA") or platformdirs.user_cache_dir("fedspan", appauthor=False)
    return Path(chosen).expanduser()
