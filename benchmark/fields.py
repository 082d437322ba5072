"""Frozen dataclasses from plain values: every field has a default and a type; a wrong value is a one-line error."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from fedspan.benchmark.errors import UserError, did_you_mean, field_of, has_controls, is_number, require, suggestion


def defaults_of(cls: type[Any]) -> dict[str, Any]:
    """Return the fields of a plugin or protocol class with their default values."""
    values = {}
    for field in dataclasses.fields(cls):
        if field.default is not dataclasses.MISSING:
            values[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            values[field.name] = field.default_factory()
        else:
            raise UserError(f"{field_of(cls, field.name)} needs a default value")
    return values


def hints_of(cls: type, include_extras: bool = False) -> dict[str, Any]:
    """Return the annotated types of a class by name; raise `UserError` for an annotation that cannot be read."""
    try:
        return typing.get_type_hints(cls, include_extras=include_extras)
    except Exception:
        for owner in cls.__mro__:
            for name, hint in inspect.get_annotations(owner).items():
                alone = types.SimpleNamespace(__annotations__={name: hint})
                try:
                    typing.get_type_hints(alone, vars(sys.modules[owner.__module__]), dict(vars(owner)))
                except Exception as error:
                    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
                    raise UserError(f"{field_of(owner, name)}: {kind}{error}") from None
        raise


def settable(hint: Any, paths: bool) -> bool:
    """Return whether a plugin's field of this type can be set; `paths` also allows `Path`."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        alone = [part for part in parts if part is not type(None)]  # a value could belong to several types
        return len(alone) == 1 and settable(alone[0], paths)
    if origin in (tuple, list):
        return bool(parts) and all(settable(part, paths) for part in parts if part is not Ellipsis)
    return origin is Literal or hint in (bool, int, float, str) or (paths and hint is Path)


WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", Path: "a path"}


def values_text(hint: Any) -> str:
    """Return the values of a field of this type in words: ``a number``, ``paper, pseudocode, released``."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        words = " or ".join(values_text(part) for part in parts if part is not type(None))
        return f"{words}, or null" if type(None) in parts else words
    if origin in (tuple, list):
        each = [values_text(part).replace(", ", " or ") for part in parts if part is not Ellipsis]
        return f"a list of {len(each)}: {', '.join(each)}" if _has_fixed_length(hint) else f"a list, each {each[0]}"
    return ", ".join(map(str, parts)) if origin is Literal else WORDS.get(hint, str(hint))


def _has_fixed_length(hint: Any) -> bool:
    """Return whether a list type says how many values it has: ``tuple[int, int]``, but not ``tuple[int, ...]``."""
    return get_origin(hint) is tuple and Ellipsis not in get_args(hint)


T = TypeVar("T")

LARGEST_INT = 2**63 - 1  # the largest that every file format here can hold
LONGEST_TEXT = 1000


def from_values(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Build `cls` from plain values; raise `UserError` for unknown fields, wrong types and non-finite numbers.

    `where` is the override prefix for messages, such as ``algorithm`` in ``algorithm.mu``.
    """
    return cls(**checked(cls, values, where))


def checked(cls: type[Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return values of a dataclass's fields in their types; raise `UserError` like `from_values`."""
    hints = _hints(typing.cast(Any, cls))
    found = {}
    for name, value in values.items():
        if name not in hints:
            raise UserError(f"unknown field '{where}.{name}'{did_you_mean(name, hints)}")
        found[name] = _typed(hints[name], value, f"{where}.{name}".lstrip("."))
    return found


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """Return a dataclass's field types by name, cached because each lookup recompiles every annotation."""
    hints = hints_of(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _typed(hint: Any, value: Any, where: str) -> Any:
    """Return `value` converted to the annotated type, or raise `UserError`."""
    origin = get_origin(hint)
    if origin is Literal:
        return _chosen(get_args(hint), value, where)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in get_args(hint):
            return None
        return _typed(next(arm for arm in get_args(hint) if arm is not type(None)), value, where)
    if origin in (tuple, list):
        return _listed(hint, value, where)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise UserError(f"{where} must be a mapping, got {value!r}")
        return {str(name): item for name, item in value.items()}
    return _single(hint, value, where)


def _chosen(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    """Return the choice that equals `value`, or raise `UserError`."""
    if value not in choices or isinstance(value, bool) != isinstance(choices[0], bool):
        known = list(map(str, choices))
        near = suggestion(str(value), known)
        raise UserError(f"{where} must be one of {', '.join(known)}, got {value!r}{near}")
    return choices[choices.index(value)]  # 1.0 equals 1, but has another key


def _listed(hint: Any, value: Any, where: str) -> tuple[Any, ...]:
    """Return a list's items converted to the annotated type, or raise `UserError`."""
    if isinstance(value, str) or not isinstance(value, typing.Sequence):
        raise UserError(f"{where} must be a list, got {value!r}")
    parts = get_args(hint)
    if _has_fixed_length(hint) and len(value) != len(parts):
        raise UserError(f"{where} must be a list of {len(parts)}, got {value!r}")
    hints = parts if _has_fixed_length(hint) else [parts[0]] * len(value)
    return tuple(_typed(one, item, where) for one, item in zip(hints, value, strict=True))


def _single(hint: Any, value: Any, where: str) -> Any:
    """Return a boolean, number, path or string converted to its type, or raise `UserError`."""
    if hint is bool and isinstance(value, bool):
        return value
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if hint is int and whole and not isinstance(value, bool):
        require(abs(value) <= LARGEST_INT, where, f"must lie within ±{LARGEST_INT}", value)
        return int(value)
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return _number(value, where)
    if hint is Path and isinstance(value, (str, Path)) and str(value):
        return Path(_text(str(value), where)).expanduser()
    if hint is str and isinstance(value, (str, int, float)) and not isinstance(value, bool):
        if isinstance(value, float):
            _require_normal(value, where)
        return _text(str(value), where)
    raise UserError(f"{where} must be {WORDS.get(hint, hint)}, got {value!r}")


def _number(value: float, where: str) -> float:
    """Return a finite number that reads back unchanged, or raise `UserError`."""
    if not is_number(value):
        raise UserError(f"{where} must be a finite number, got {value!r}")
    _require_normal(value, where)
    return float(value) or 0.0  # -0.0 becomes 0.0


def _require_normal(value: float, where: str) -> None:
    """Raise `UserError` for subnormal numbers: a processor that flushes them to 0 also writes them as 0."""
    small = 0 < abs(value) < sys.float_info.min
    require(not small, where, f"must be 0 or at least {sys.float_info.min:g} in size", value)


def _text(value: str, where: str) -> str:
    """Return a text that is safe in files and terminals, or raise `UserError`."""
    require(len(value) <= LONGEST_TEXT, where, f"must have at most {LONGEST_TEXT} characters", value[:20] + "...")
    require(not has_controls(value), where, "must not have control characters", value)
    return value
