"""Plugins: frozen hyper-parameters under a name. Everything else is derived from this registry."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import pkgutil
import re
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar, dataclass_transform

from fedspan.benchmark.errors import UserError, did_you_mean
from fedspan.benchmark.fields import defaults_of

DIGEST = re.compile(r"(?<=\b[0-9a-f]{8})[0-9a-f]{56}\b")  # all but the beginning

KINDS = {
    "dataset": "datasets",
    "partition": "partitions",
    "model": "models",
    "algorithm": "algorithms",
    "addon": "addons",
}
ENTRY_POINT_GROUP = "fedspan.plugins"
PLUGIN_PACKAGES = ("fedspan.methods", "fedspan.tasks")
RESERVED = ("kind", "name", "version")  # they identify a plugin in a record

_plugins: dict[str, dict[str, type[Plugin]]] = {kind: {} for kind in KINDS}
_discovered = False
broken_entry_points: dict[str, str] = {}


class Plugin:
    """Frozen hyper-parameters under a registered name.

    `version` is part of a cell's key: raise it when an edit changes results.
    """

    kind: ClassVar[str]
    name: ClassVar[str]
    version: ClassVar[int] = 1

    def what(self) -> dict[str, Any]:
        """Return all that identifies this plugin in a record: name, version and every field that changes results."""
        return {"name": self.name, "version": self.version, **what_of(self)}

    def settings(self) -> dict[str, Any]:
        """Return what `what` does, and also the fields declared as `later` that have their default."""
        fields = dataclasses.fields(typing.cast(Any, self))
        return self.what() | {f.name: getattr(self, f.name) for f in fields if f.metadata.get("later")}

    def label(self) -> str:
        """Return a short text: the name and the fields that differ from their defaults; of a digest its beginning."""
        changed = [
            f"{k}={DIGEST.sub('…', str(v))}"
            for k, v in self.what().items()
            if k in defaults_of(type(self)) and v != defaults_of(type(self))[k]
        ]
        return f"{self.name}({', '.join(changed)})" if changed else self.name


def what_of(settings: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that enter a key: none of `how`, of `later` those that differ from defaults."""
    return {
        field.name: value
        for field in dataclasses.fields(settings)
        for value in [getattr(settings, field.name)]
        if not field.metadata.get("how") and not (field.metadata.get("later") and value == field.default)
    }


P = TypeVar("P", bound=Plugin)


def how(default: Any) -> Any:
    """Declare a field that says where or how, not what: it never enters a record's key."""
    return dataclasses.field(default=default, metadata={"how": True})


def later(default: Any) -> Any:
    """Declare a field that a published plugin, or the protocol, got afterwards: earlier records keep their keys.

    The default must mean what happened without the field; while a cell has it, its key does not know the field.
    """
    return dataclasses.field(default=default, metadata={"later": True})


def decorator(kind: str) -> Callable[[str], Callable[[type[P]], type[P]]]:
    """Return the decorator factory of one kind: ``@algorithm("fedprox")``."""

    @dataclass_transform(frozen_default=True)
    def named(name: str) -> Callable[[type[P]], type[P]]:
        def register(cls: type[P]) -> type[P]:
            if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
                raise UserError(f"{kind} name {name!r} ({cls.__module__}) must be lower case letters, digits and _")
            if not re.search(r"\b(19|20)\d\d\b", cls.__doc__ or ""):
                raise UserError(
                    f"{kind} '{name}' ({cls.__module__}) needs a docstring that names its source with a year"
                )
            known = _plugins[kind].get(name)
            mine, theirs = (f"{c.__module__}.{c.__qualname__}" if c else None for c in (cls, known))
            if theirs not in (None, mine):
                raise UserError(f"{kind} '{name}' is registered twice: by {theirs} and by {mine}")
            plugin = dataclasses.dataclass(frozen=True)(cls)
            for field in dataclasses.fields(typing.cast(Any, plugin)):
                if field.name in RESERVED:
                    raise UserError(f"{kind} '{name}' ({mine}) cannot have a field called '{field.name}'; rename it")
            plugin.kind, plugin.name = kind, name
            _plugins[kind][name] = plugin
            return plugin

        return register

    return named


def discover() -> None:
    """Import every module under `fedspan.methods` and `fedspan.tasks`, then the installed entry points, once.

    Raises `UserError` with the place of the mistake for a broken module of this checkout. A broken entry point of
    another distribution is remembered in `broken_entry_points` and does not stop the rest.
    """
    global _discovered
    if _discovered:
        return
    for package_name in PLUGIN_PACKAGES:
        package = importlib.import_module(package_name)
        for module in pkgutil.walk_packages(package.__path__, f"{package_name}."):
            try:
                importlib.import_module(module.name)
            except UserError:
                raise
            except Exception as error:
                raise UserError(f"{module.name} cannot be imported: {_one_line(error)} ({_place(error)})") from error
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        try:
            entry.load()
        except (Exception, SystemExit) as error:
            broken_entry_points[entry.name] = f"{entry.value}: {_one_line(error)}"
    _discovered = True


def _one_line(error: BaseException) -> str:
    text = str(error.msg if isinstance(error, SyntaxError) else error)
    return f"{type(error).__name__}: {' '.join(text.split())}"


def _place(error: Exception) -> str:
    """Return file and line of the mistake."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}, line {frame.lineno}"


def plugins(kind: str) -> Mapping[str, type[Plugin]]:
    """Return the registered classes of one kind, by name, in alphabetical order."""
    discover()
    return dict(sorted(_plugins[kind].items()))


class UnknownPlugin(UserError):
    """No plugin of this name is installed."""


def find(kind: str, name: str) -> type[Plugin]:
    """Return the class registered under `name`; raise `UnknownPlugin` with a did-you-mean otherwise."""
    known = plugins(kind)
    if name not in known:
        note = f" (its entry point is broken: {broken_entry_points[name]})" if name in broken_entry_points else ""
        raise UnknownPlugin(f"unknown {kind} '{name}'{note}{did_you_mean(str(name), known)}")
    return known[name]


def all_plugins() -> Iterator[type[Plugin]]:
    """Yield every registered class, kind by kind."""
    for kind in KINDS:
        yield from plugins(kind).values()
