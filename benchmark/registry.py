"""Plugins: frozen hyper-parameters under a name. Everything else is derived from this registry."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar, dataclass_transform

from fedspan.benchmark import discovery
from fedspan.benchmark.errors import UserError, closest, did_you_mean, place_of
from fedspan.benchmark.fields import defaults_of
from fedspan.benchmark.registration import base_of, check_class, check_fields, code_name

DIGEST = re.compile(r"(?<=\b[0-9a-f]{8})[0-9a-f]{56}\b")  # all but the first 8 digits

KINDS = {
    "dataset": "datasets",
    "partition": "partitions",
    "model": "models",
    "fleet": "fleets",
    "algorithm": "algorithms",
    "addon": "addons",
}
SINGLE_KINDS = tuple(kind for kind in KINDS if kind != "addon")  # a cell has one plugin of each
PLUGIN_PACKAGES = ("fedspan.methods", "fedspan.tasks")
_ARTICLE = {"algorithm": "an", "addon": "an"}

_plugins: dict[str, dict[str, type[Plugin]]] = {kind: {} for kind in KINDS}
_discovered = False
_files: dict[str, str] = {}  # of the setting `plugins`: absolute path -> path as given
_broken: list[discovery.Broken] = []  # sources that could not be imported


class Plugin:
    """Frozen hyper-parameters under a registered name.

    `version` is part of the cell key: raise it when an edit changes results. The rest is for readers and in no digest:

    - `title`: the readable name, e.g. ``FedAvgM``;
    - `summary`: a one-sentence description;
    - `papers`: keys of the bibliography (`fedspan/papers.bib`), or ``arXiv:...``, ``doi:...``, a URL;
    - `wording`: how names show a setting: a format with a placeholder for the value (``"{} form"``), or a text for each
      value (``...``: a format for all others); an empty text omits the setting;
    - `identifying`: settings that names show even at their defaults.
    """

    kind: ClassVar[str]
    name: ClassVar[str]
    version: ClassVar[int] = 1
    title: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    papers: ClassVar[tuple[str, ...]] = ()
    wording: ClassVar[Mapping[str, str | Mapping[Any, str]]] = {}
    identifying: ClassVar[tuple[str, ...]] = ()

    def what(self) -> dict[str, Any]:
        """Return this plugin's identity in a record: name, version and every field that changes results."""
        return {"name": self.name, "version": self.version, **what_of(self)}

    def settings(self) -> dict[str, Any]:
        """Return the items of `what` plus the `later` fields at their defaults."""
        fields = dataclasses.fields(typing.cast(Any, self))
        return self.what() | {f.name: getattr(self, f.name) for f in fields if f.metadata.get("later")}

    def label(self) -> str:
        """Return a short text: the name and the fields that differ from their defaults, with digests abbreviated."""
        changed = [
            f"{k}={DIGEST.sub('…', str(v))}"
            for k, v in self.what().items()
            if k in defaults_of(type(self)) and v != defaults_of(type(self))[k]
        ]
        return f"{self.name}({', '.join(changed)})" if changed else self.name


def what_of(settings: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that enter a key: all but `how` fields and `later` fields at their defaults."""
    return {
        field.name: value
        for field in dataclasses.fields(settings)
        for value in [getattr(settings, field.name)]
        if not field.metadata.get("how") and not (field.metadata.get("later") and value == field.default)
    }


P = TypeVar("P", bound=Plugin)


def how(default: Any) -> Any:
    """Declare a field about where or how a cell is computed, not what: it never enters the cell key."""
    return dataclasses.field(default=default, metadata={"how": True})


def later(default: Any) -> Any:
    """Declare a field added to a published plugin or to the protocol, so that earlier records keep their keys.

    The default must reproduce the behaviour before the field existed; at the default the key omits it.
    """
    return dataclasses.field(default=default, metadata={"later": True})


def decorator(kind: str) -> Callable[[str], Callable[[type[P]], type[P]]]:
    """Return the decorator factory of one kind: ``@algorithm("fedprox")``."""

    @dataclass_transform(frozen_default=True)
    def named(name: str = "") -> Callable[[type[P]], type[P]]:
        if isinstance(name, type):
            raise UserError(f'@{kind} needs a name ({place_of(name)}); write @{kind}("{code_name(name)}")')

        def register(cls: type[P]) -> type[P]:
            check_class(cls, kind, name)
            known = _plugins[kind].get(name)
            mine, theirs = (f"{c.__module__}.{c.__qualname__}" if c else None for c in (cls, known))
            if theirs not in (None, mine):
                places = " and by ".join(f"{c.__qualname__} ({place_of(c)})" for c in (known, cls) if c)
                raise discovery.Clash(
                    (kind, name),
                    f"{kind} '{name}' is registered twice: by {places}; rename one, or drop one of two copies",
                )
            plugin = dataclasses.dataclass(frozen=True)(cls)
            check_fields(plugin, kind, name)
            plugin.kind, plugin.name = kind, name
            _plugins[kind][name] = plugin
            return plugin

        return register

    return named


def discover() -> None:
    """Import every plugin module once: of this package, of installed distributions, and of `FEDSPAN_PLUGINS`.

    A failed import does not stop the others: `broken` reports it, with file and line.
    """
    global _discovered
    if _discovered:
        return
    _discovered = True
    for source in discovery.everywhere(PLUGIN_PACKAGES):
        _load(source)
    _keep_sources()


def _keep_sources() -> None:
    discovery.keep_sources({cls.__module__.partition(".")[0] for known in _plugins.values() for cls in known.values()})


def _load(source: discovery.Source) -> discovery.Broken | None:
    """Import a source; return its error, which `broken` reports until a later import succeeds."""
    path = Path(os.path.realpath(source.path)) if source.path else None
    _broken[:] = [one for one in _broken if path is None or one.path != path]
    try:
        source.load()
    except (Exception, SystemExit) as error:
        _forget_unfinished()
        _broken.append(discovery.broken(source, error))
        return _broken[-1]
    return None


def load_files(given: Iterable[str]) -> None:
    """Import the plugins in files, or in all files of folders.

    Raises `UserError` if a named file cannot be imported; a broken file in a folder stops no other: `broken` reports
    it. A file whose plugins are already registered, such as one of this package, is not imported again.
    """
    for path in given:
        if os.path.abspath(path) in _files:
            continue
        discover()
        modules = {cls.__module__ for known in _plugins.values() for cls in known.values()}
        here = {os.path.realpath(getattr(sys.modules.get(name), "__file__", None) or "") for name in modules}
        for source in discovery.files(path):
            if os.path.realpath(str(source.path)) in here:
                continue
            if (found := _load(source)) and source.path == Path(os.path.expanduser(path)).absolute():
                _broken.remove(found)
                raise UserError(found.text)
        _keep_sources()
        _files[os.path.abspath(path)] = path


def reload_edited() -> None:
    """Reimport user files edited since their import, as a notebook does before a run.

    `broken` reports those that can no longer be imported. `load_files` then looks again: for new files in a folder, and
    at a broken file.
    """
    _files.clear()
    edited = discovery.forget_edited()
    if edited:
        _forget_unfinished()
        _broken[:] = [one for one in _broken if one.path not in edited]
    for source in (source for path in edited if path.is_file() for source in discovery.files(str(path))):
        _load(source)
    _keep_sources()


def _forget_unfinished() -> None:
    """Remove the plugins of modules that are not loaded, after a failed import or an edit."""
    for known in _plugins.values():
        for name in [name for name, cls in known.items() if cls.__module__ not in sys.modules]:
            del known[name]


def broken() -> list[discovery.Broken]:
    """Return the sources of plugins that could not be imported, each with its error."""
    discover()
    return list(_broken)


def prefix_of(plugin: Plugin | type[Plugin]) -> str:
    """Return the prefix of a plugin's settings: its kind, or ``addon.NAME``."""
    return prefix(plugin.kind, plugin.name)


def prefix(kind: str, name: str) -> str:
    """Return the prefix of the settings of the plugin of this kind and name."""
    return f"addon.{name}" if kind == "addon" else kind


def choice(kind: str, name: str) -> str:
    """Return the setting that chooses a plugin: ``algorithm=NAME``, or ``addons=[NAME]``."""
    return f"addons=[{name}]" if kind == "addon" else f"{kind}={name}"


def plugins(kind: str) -> Mapping[str, type[Plugin]]:
    """Return the registered classes of one kind, by name, in alphabetical order."""
    discover()
    return dict(sorted(_plugins[kind].items()))


class UnknownPlugin(UserError):
    """No plugin of this name is installed."""


def how_settings() -> dict[str, set[str]]:
    """Return the `how` settings of plugins, such as dataset.root, with the names of the plugins that have them."""
    found: dict[str, set[str]] = {}
    for kind in KINDS:
        for name, cls in plugins(kind).items():
            for field in dataclasses.fields(typing.cast(Any, cls)):
                if field.metadata.get("how"):
                    found.setdefault(f"{kind}.{field.name}", set()).add(name)
    return found


def find(kind: str, name: str) -> type[Plugin]:
    """Return the class registered under `name`; raise `UnknownPlugin`, with a close match or what is broken.

    Also raises if a user's file that failed to import defines another plugin of this kind and name.
    """
    known = plugins(kind)
    if disputed := [one.text for one in _broken if one.claims == (kind, name)]:
        raise UnknownPlugin(disputed[0])
    if name in known:
        return known[name]
    if why := why_unknown(name, [kind]):
        raise UnknownPlugin(f"unknown {kind} '{name}' ({why})")
    if other := next((other for other in KINDS if name in _plugins[other]), None):
        here, there = (f"{_ARTICLE.get(one, 'a')} {one}" for one in (kind, other))
        raise UnknownPlugin(f"'{name}' is not {here} but {there}; write {choice(other, name)}")
    near = did_you_mean(str(name), known)
    if near.endswith("?"):
        raise UnknownPlugin(f"unknown {kind} '{name}'{near} (in a file? add plugins=FILE.py)")
    raise UnknownPlugin(f"unknown {kind} '{name}'{near}. {discovery.where(PLUGIN_PACKAGES, _files.values())}")


def why_unknown(name: str, kinds: Collection[str]) -> str:
    """Return why a user's plugin is missing: its file is broken or its class has no decorator; empty if neither."""
    if here := [one.text for one in broken() if name in one.names]:
        return here[0]
    bare: dict[str, tuple[type, str]] = {}
    for module in discovery.imported():
        for cls in vars(module).values():
            if isinstance(cls, type) and issubclass(cls, Plugin) and cls.__module__ == module.__name__:
                base = base_of(cls).__name__.lower()
                of = [kind for kind in kinds if kind == base or (base == "component" and kind in _ARTICLE)]
                if of and "kind" not in vars(cls):
                    bare[cls.__name__.lower()] = cls, of[0]
    near = closest(name.replace("_", ""), bare)
    if not near and len(bare) == 1 and not closest(name, {other for kind in kinds for other in _plugins[kind]}):
        near = [*bare]
    if not near:
        return ""
    cls, kind = bare[near[0]]
    return f'{cls.__name__} ({place_of(cls)}) has no decorator; write @{kind}("{name}") above it'


def all_plugins() -> Iterator[type[Plugin]]:
    """Yield every registered class, kind by kind."""
    for kind in KINDS:
        yield from plugins(kind).values()
