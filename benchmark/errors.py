"""The few errors that a user meets, each one line: what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from typing import Any


class UserError(Exception):
    """Something that the user must change. The command prints the message and exits with status 2."""


class HookError(UserError):
    """A plugin's hook returned what it must not, or raised; the message names plugin, hook, file and line."""


class Incompatible(Exception):
    """Components that cannot work together, or not on this task; the cell is recorded as skipped."""


class Diverged(Exception):
    """A non-finite loss or weight; the cell is recorded as diverged, with its curve."""


class CorruptFile(Exception):
    """A record, checkpoint or cache whose content is not what its writer wrote."""


class LaterVersion(CorruptFile):
    """A file that a later version of FedSpan wrote: it is good, but not for this version, and stays where it is."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` or, without a near name, the known names."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; known: {', '.join(known)}" if known else ""


def require(condition: bool, where: str, rule: str, got: Any) -> None:
    """Raise a `UserError` that names the setting, its rule and the value received, unless `condition`."""
    if not condition:
        raise UserError(f"{where} {rule}, got {got!r}")


def plain(text: str) -> str:
    """Return a text of anybody's in which nothing is a command to a terminal: such characters stand as their codes."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def is_number(value: object) -> bool:
    """Tell whether a value of a file is a finite number; text may hold integers that are larger than any float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
