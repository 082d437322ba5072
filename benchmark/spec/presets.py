"""YAML files of boards, pieces, protocols and defaults: folders, readers and tuned settings."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedspan.benchmark.errors import UserError, did_you_mean, has_controls
from fedspan.benchmark.fields import defaults_of, from_values
from fedspan.benchmark.places import packaged
from fedspan.benchmark.protocol import Protocol
from fedspan.benchmark.registry import KINDS, UnknownPlugin, find, load_files, plugins
from fedspan.benchmark.spec.settings import paths_of
from fedspan.benchmark.spec.yaml_text import checked


def import_plugins_of(settings: Mapping[str, Any]) -> None:
    """Import the plugin files that settings name, so that settings of their plugins are known.

    Whoever composes a cell reports a file that cannot be imported.
    """
    with contextlib.suppress(UserError):
        load_files(paths_of(settings.get("plugins")))


def yaml_files(kind: str) -> dict[str, Path]:
    """Return the files `leaderboards/<kind>/*.yaml` by name; the working folder overrides the installation."""
    found: dict[str, Path] = {}
    for folder in (packaged("leaderboards", kind), Path("leaderboards") / kind):
        if folder.is_dir():
            now = folder.stat()
            found |= {path.stem: path for path in _listing(folder, now.st_ino, now.st_mtime_ns)}
    return found


@cache
def _listing(folder: Path, inode: int, changed: int) -> list[Path]:
    """Return a folder's YAML files, read once per change: planning looks up presets for each of thousands of cells."""
    return sorted(folder.glob("*.yaml"))


def load_yaml(path: Path) -> dict[str, Any]:
    """Return a YAML mapping, safely loaded; raise `UserError` naming the file and line otherwise."""
    try:
        return copy.deepcopy(_load_yaml(path, path.stat().st_mtime_ns))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


@cache
def _load_yaml(path: Path, changed: int) -> dict[str, Any]:
    """Return the mapping in a file, read once per change for the same reason."""
    try:
        loaded = OmegaConf.to_container(OmegaConf.load(io.StringIO(checked(path))), resolve=False)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        problem = str(getattr(error, "problem", None) or error).splitlines()[0]
        raise UserError(f"{path}{line} is not valid YAML: {problem}") from None
    except (OSError, OmegaConfBaseException, ValueError) as error:
        raise UserError(f"cannot read {path}: {str(error).splitlines()[0]}") from None
    if not isinstance(loaded, dict):
        raise UserError(f"{path} must be a mapping")
    return _with_texts(loaded, path)


def _with_texts(value: Any, path: Path) -> Any:
    """Return nested YAML with all keys as strings; raise `UserError` for control characters other than line breaks."""
    if isinstance(value, dict):
        return {_with_texts(str(key), path): _with_texts(item, path) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_texts(item, path) for item in value]
    if isinstance(value, str) and has_controls(value.replace("\n", " ").replace("\t", " ")):
        raise UserError(f"{path}: the text {value!r:.60} must not have control characters")
    return value


@cache
def default_choices() -> Mapping[str, str]:
    """Return the default plugin of each kind, and the default protocol."""
    return {group: str(name) for group, name in load_yaml(packaged("leaderboards", "defaults", "cell.yaml")).items()}


@dataclasses.dataclass(frozen=True)
class SettingRule:
    """Settings (`set`) of a protocol for cells with certain others (`when`), such as an algorithm's learning rate."""

    when: dict[str, Any] = dataclasses.field(default_factory=dict)
    set: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Preset:
    """A protocol's YAML file: the fields of `Protocol`, a description, and tuned settings outside of it."""

    description: str = "The defaults of every protocol."
    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    tuned: tuple[SettingRule, ...] = ()


def preset(name: str, above: tuple[str, ...] = ()) -> Preset:
    """Return a protocol's preset by name, merged over the one that it `extends`; raise `UserError` if it is invalid.

    `above` are the protocols that extend it.
    """
    known = yaml_files("protocols")
    if name == "default":
        return Preset()
    if name not in known:
        raise UserError(f"unknown protocol '{name}'{did_you_mean(name, ['default', *known])}")
    path, base = known[name], Preset()
    raw = load_yaml(path)
    if (parent := raw.pop("extends", None)) is not None:
        if (parent := str(parent)) in (*above, name):
            raise UserError(f"{path}: it extends itself")
        if parent not in known:
            raise UserError(f"{path}: extends: there is no protocol '{parent}'{did_you_mean(parent, known)}")
        base = preset(parent, (*above, name))
    description, rules = str(raw.pop("description", "")), raw.pop("tuned", [])
    from_values(Protocol, base.values | raw, f"{path}: protocol")
    return Preset(description, base.values | raw, (*base.tuned, *setting_rules(rules, str(path))))


def setting_rules(rules: Any, where: str) -> tuple[SettingRule, ...]:
    """Return the tuned settings of a YAML file; raise `UserError` naming `where` if they are invalid."""
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise UserError(f"{where}: tuned must be a list of mappings with 'when' and 'set'")
    return tuple(from_values(SettingRule, rule, f"{where}: tuned[{number}]") for number, rule in enumerate(rules))


def applies(rule: SettingRule, config: Mapping[str, Any]) -> bool:
    """Return whether a composed configuration has every setting under the rule's `when`."""
    return all(_has(config, key, wanted) for key, wanted in rule.when.items())


def _has(config: Mapping[str, Any], key: str, wanted: Any) -> bool:
    _check_names(key, wanted)
    node: Any = config
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            if (hint := unknown_setting(config, key)) is not None:
                raise UserError(f"a tuned setting depends on '{key}', which is not a setting{hint}")
            return False
        node = node[part]
    if key == "addons":
        here, names = _listed(node), _listed(wanted)
        return all(name in here for name in names) if names else not here
    if isinstance(node, Mapping):
        if "name" not in node:
            one = f"{key}.{next(iter(node), 'name')}"
            raise UserError(f"a tuned setting depends on '{key}', which holds several settings; name one: {one}")
        node = node["name"]
    return bool(node == wanted) or (isinstance(wanted, list) and node in wanted)


def _listed(names: Any) -> list[Any]:
    """Return a list as it is, and a single name, which needs no brackets, in one."""
    return names if isinstance(names, list) else [names]


def _check_names(key: str, wanted: Any) -> None:
    """Raise `UserError` for a plugin under `when` that does not exist: its rule would never apply."""
    kind = "addon" if key == "addons" else key
    if kind not in KINDS:
        return
    try:
        for name in _listed(wanted):
            find(kind, str(name))
    except UnknownPlugin as error:
        raise UserError(f"a tuned setting depends on {key}={wanted}: {error}") from None


def unknown_setting(config: Mapping[str, Any], key: str) -> str | None:
    """Return a hint at what is meant by `key`, or None if it is a setting of `config` or of another of its plugins."""
    node: Any = config
    walked = ""
    for part in key.split("."):
        if not isinstance(node, Mapping):
            return f"; '{walked[:-1]}' is a setting itself"
        if part not in node:
            break
        node, walked = node[part], f"{walked}{part}."
    else:
        return None
    kind, field, known = walked[:-1], key.removeprefix(walked), set(node)
    if "name" in node:  # of a plugin
        classes: list[Any] = list(plugins(kind).values())
        if any(field in _fields(cls) for cls in classes):
            return None
        known = {name for cls in classes for name in _fields(cls)}
    return did_you_mean(key, [walked + name for name in known])


@cache
def _fields(cls: type[Any]) -> frozenset[str]:
    return frozenset(defaults_of(cls))
