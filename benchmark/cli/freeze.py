"""`fedspan freeze`: the next frozen version of a board."""

from __future__ import annotations

import argparse

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.spec.freezing import freeze


def make(arguments: argparse.Namespace) -> int:
    """Write the next frozen version; print its path and the command that runs it."""
    if len(arguments.words) != 1:
        raise UserError("write: fedspan freeze NAME, the name of a board")
    path = freeze(arguments.words[0].removeprefix("board="))
    print(f"{path}\nfedspan run -m board={path.stem}")
    return 0
