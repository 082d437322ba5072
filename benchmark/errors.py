"""User-facing errors, each one line: what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
import unicodedata
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any


class UserError(Exception):
    """A mistake that the user must fix. The command prints the message and exits with status 2."""


class HookError(UserError):
    """A plugin's hook returned something invalid, or raised; the message names plugin, hook, file and line."""


class Incompatible(Exception):
    """Components that do not work together, or not on this task; the cell is recorded as skipped."""


class Diverged(Exception):
    """A non-finite loss or weight; the cell is recorded as diverged, with its curve."""


class CorruptFile(Exception):
    """A record, checkpoint or cache whose content differs from what was written."""


class LaterVersion(CorruptFile):
    """A file written by a later version of FedSpan: intact, but unreadable to this version, and left in place."""


def closest(name: str, known: Iterable[str]) -> list[str]:
    """Return the known name closest to `name` as a list of one; empty without a close match."""
    known = list(known)
    return next(filter(None, (difflib.get_close_matches(one, known, 1, 0.6) for one in (name, name.lower()))), [])


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"``, empty without a close match."""
    return "".join(f"; did you mean '{near}'?" for near in closest(name, known))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the suggestion of a close match or, without one, the known names."""
    known = sorted(known)
    return suggestion(name, known) or (f"; known: {', '.join(known)}" if known else "")


def require(condition: bool, where: str, rule: str, got: Any) -> None:
    """Raise a `UserError` that names the setting, its rule and the value received, unless `condition`."""
    if not condition:
        raise UserError(f"{where} {rule}, got {got!r}")


def place_of(cls: type, member: str = "") -> str:
    """Return file and line of a class or of its `member`, or the full name of a class without a file."""
    try:
        lines, first = inspect.getsourcelines(cls)
        path = inspect.getsourcefile(cls)
    except (OSError, TypeError):
        return f"{cls.__module__}.{cls.__qualname__}"
    name = re.escape(member)
    defined = re.compile(rf"\s+(def\s+{name}\b|{name}\s*[:=])")
    offset = next((number for number, line in enumerate(lines) if member and defined.match(line)), 0)
    return f"{path}, line {first + offset}"


def field_of(cls: type, name: str) -> str:
    """Return a field's name with its class, file and line."""
    return f"{cls.__name__}.{name} ({place_of(cls, name)})"


def plain(text: str) -> str:
    """Return untrusted text made safe for a terminal: unprintable characters become escape codes."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def has_controls(text: str) -> bool:
    """Return whether a text has control characters, lone surrogates or separators of lines or paragraphs."""
    return any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in text)


def is_number(value: object) -> bool:
    """Return whether a value from a file is a finite number; integers in text may exceed the largest float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra: from the checkout or, with a wheel, only the extra's packages."""
    if (Path(__file__).resolve().parents[1] / "pyproject.toml").is_file():
        return f"uv pip install -e '.[{extra}]' -c constraints.txt, in FedSpan's checkout"
    needed = (text.split(";") for text in metadata.requires("fedspan") or () if f"extra == '{extra}'" in text)
    return "uv pip install " + " ".join(f"'{name.strip()}'" for name, *_ in needed)
