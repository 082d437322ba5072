"""Overrides, ``name=value`` in Hydra's grammar: parsing and writing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import islice, takewhile
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, QuotedString
from hydra.errors import HydraException

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.fields import defaults_of
from fedspan.benchmark.registry import KINDS, choice, load_files, plugins
from fedspan.benchmark.spec.presets import yaml_files
from fedspan.benchmark.spec.settings import How, paths_of, several_ways

MOST_VALUES = 100_000  # of a setting in a grid
MOST_SHOWN = 200  # characters of an unreadable setting
_SPECIAL = set("[]{}\"'`$\\!")  # special in lists, mappings or a shell's double quotes
# Settings left out of a record's command: how one machine ran the cell, and where its files are.
NOT_REPEATED = ("workers=", "launcher=", "board=", "paths.", "tracking=", "fresh=", "dataset.source=", "dataset.root=")


@cache
def _parser() -> OverridesParser:
    return OverridesParser.create()


def parse(texts: Iterable[str]) -> list[Override]:
    """Parse overrides by Hydra's grammar; raise a one-line `UserError` otherwise."""
    parsed, words = [], list(texts)
    for number, text in enumerate(words):
        try:
            parsed.append(_parser().parse_override(text))
        except (HydraException, ValueError):  # an integer of too many digits is a ValueError
            hint = _hint(text, words[number + 1 :]) or "write name=value, and quote lists: 'addons=[a,b]'"
            shown = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
            raise UserError(f"cannot read the setting {shown!r}; {hint}") from None
    return parsed


def _hint(word: str, after: Sequence[str]) -> str:
    """Return a hint at what an unreadable word means: a board or plugin, or a setting written in another way."""
    if word in yaml_files("boards"):
        return f"did you mean board={word}?"
    if kind := next((kind for kind in KINDS if word in plugins(kind)), None):
        return f"did you mean {choice(kind, word)}?"
    if isinstance(defaults_of(How).get(word), bool):
        return f"did you mean {word}={after[0] if after and after[0] in ('true', 'false') else 'true'}?"
    if _NAME.fullmatch(word) and after and (_PLAIN.fullmatch(after[0]) or _NUMBER.fullmatch(after[0])):
        return f"did you mean {word}={after[0]}?"
    name, _, value = word.partition("=")
    values = takewhile(lambda one: "=" not in one, after)  # words up to the next setting
    if _NAME.fullmatch(name) and value.startswith("[") and any(one.endswith("]") for one in values):
        return f"write a list without spaces: {name}=[a,b]"
    if _NAME.fullmatch(name) and value.endswith(",") and any(one.fullmatch(value[:-1]) for one in (_NUMBER, _PLAIN)):
        return f"write several values without spaces, and none after the last comma: {name}=a,b"
    if _NAME.fullmatch(name) and 0 < len(value) <= MOST_SHOWN and not set(value) & _SPECIAL:
        return "quote the value: " + f'"{name}=' + f"'{value}'" + '"'
    return ""


def split_hydra(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return settings, and Hydra's own overrides, such as ``hydra.launcher.partition=gpu``, apart."""
    settings: list[str] = []
    for_hydra: list[str] = []
    for word in words:
        (for_hydra if word.startswith(("hydra.", "hydra/")) else settings).append(word)
    return settings, for_hydra


def plain_value(value: Any) -> Any:
    """Return an override's value as plain Python."""
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, Glob):
        raise UserError("glob(...) is not supported; list the values")
    if isinstance(value, dict):
        return {str(plain_value(key)): plain_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain_value(item) for item in value]
    return value


def axes_of(arguments: Iterable[str]) -> dict[str, list[Any]]:
    """Return key -> values of a command line's overrides; a sweep has several values.

    Imports the files of `plugins`, because other overrides, such as a dataset's place, may be their settings.
    """
    axes: dict[str, list[Any]] = {}
    for override in parse(arguments):
        key = override.get_key_element()
        if not key:
            raise UserError(f"cannot read the setting {override.input_line!r}; write name=value")
        if override.is_add() or override.is_delete() or override.package:
            raise UserError(f"'{override.input_line}': settings cannot be added, deleted or moved; write name=value")
        if key in axes:
            raise UserError(f"'{key}' is given twice; give it once, with -m as {key}=a,b")
        axes[key] = _values(override)
        if said := several_ways(key, axes[key]):
            hint = f"; write '{key}=[{','.join(map(str, axes[key]))}]'" if key == "plugins" else ""
            raise UserError(f"'{override.input_line}': {said}{hint}")
    for named in axes.get("plugins", []):
        load_files(paths_of(named))
    return axes


def _values(override: Override) -> list[Any]:
    if isinstance(override.value(), Glob) or (override.is_sweep_override() and not override.is_discrete_sweep()):
        raise UserError(f"'{override.input_line}': only lists of values and range(...) can be swept")
    swept = override.is_sweep_override()
    values = list(islice(override.sweep_iterator(), MOST_VALUES + 1)) if swept else [override.value()]
    if len(values) > MOST_VALUES:
        raise UserError(f"'{override.input_line}': at most {MOST_VALUES:,} values can be swept")
    if any(isinstance(value, dict) for value in values):
        raise UserError(f"'{override.input_line}': set the settings one by one, as {override.key_or_group}.field=value")
    return [plain_value(value) for value in values]


_PLAIN = re.compile(r"(\.{0,2}/|[A-Za-z_])[A-Za-z0-9_./:-]*")  # needs no quotes
_NUMBER = re.compile(r"-?[0-9.]+(e-?[0-9]+)?")
_NAME = re.compile(r"[a-z_]+(\.[a-z0-9_]+)*")  # of a setting
_TYPED = {"null", "true", "false", "inf", "nan"}


def override_text(key: str, value: Any) -> str:
    """Return ``key=value`` in Hydra's grammar."""
    return f"{key}={_quote(value)}"


def _quote(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_quote(item) for item in value)}]"
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and value.lower() not in _TYPED:
            return value
        # Double backslashes before a quote, including the closing one; others stay as they are.
        return "'" + re.sub(r"(\\*)('|\Z)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), value) + "'"
    return repr(value)


def place_words(how: How) -> list[str]:
    """Return the words of a command that set the results folder and plugin files, if these are not the defaults."""
    files = how.plugins
    words = [override_text("paths.results", str(how.results))] if how.results != How.results else []
    return words + ([override_text("plugins", files[0] if len(files) == 1 else files)] if files else [])


def command_of(overrides: Iterable[str]) -> str:
    """Return the shell command that reruns a cell on any machine; add the paths of that machine's images."""
    return shlex.join(["fedspan", "run", *(word for word in overrides if not word.startswith(NOT_REPEATED))])


def settings_of(words: Iterable[str]) -> dict[str, Any]:
    """Return key -> value of overrides; raise `UserError` if one has several values."""
    return single(axes_of(words))


def single(axes: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Return key -> value of settings that take one value each; raise `UserError` if one has several."""
    for key, values in axes.items():
        if len(values) > 1:
            raise UserError(f"{key} takes one value here, got {', '.join(map(str, values))}")
    return {key: value for key, [value] in axes.items()}
