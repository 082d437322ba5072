"""Composition of configurations and cells from overrides: by Hydra, or for thousands of cells by a fast equivalent."""

from __future__ import annotations

import contextlib
import difflib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedspan.benchmark.contract import blame
from fedspan.benchmark.errors import HookError, UserError, closest, did_you_mean
from fedspan.benchmark.fields import defaults_of, from_values
from fedspan.benchmark.protocol import Protocol
from fedspan.benchmark.registry import Plugin, UnknownPlugin, choice, find, load_files, plugins
from fedspan.benchmark.spec.cell import Cell
from fedspan.benchmark.spec.diagnostics import Diagnostics
from fedspan.benchmark.spec.overrides import override_text
from fedspan.benchmark.spec.presets import SettingRule, applies, default_choices, import_plugins_of, preset, yaml_files
from fedspan.benchmark.spec.settings import What, how_defaults, paths_of, what_defaults
from fedspan.benchmark.task import Dataset

log = logging.getLogger("fedspan")

CONFIG_NAME = "fedspan"
GROUPS = ("dataset", "partition", "fleet", "model", "algorithm", "protocol")
NEAR = 0.75  # least similarity for a hint, such as protocol.epochs -> protocol.local_epochs


def options(group: str) -> dict[str, dict[str, Any]]:
    """Return the choices of a group, each with its configuration node."""
    if group != "protocol":
        return {name: option(group, name) for name in plugins(group)}
    found = {"default": option(group, "default")}
    for name in yaml_files("protocols"):
        try:
            found[name] = option(group, name)
        except UserError as error:  # a broken file of an unused protocol stops nothing
            log.warning("protocol '%s' is left out: %s", name, error)
    return found


def option(group: str, name: str) -> dict[str, Any]:
    """Return the configuration node of a choice; raise `UserError` with a suggestion for an unknown one."""
    if group == "protocol":
        return _plain(defaults_of(Protocol) | preset(name).values)
    return {"name": name, **_plain(defaults_of(_find(group, name)))}


def _find(kind: str, name: str) -> type[Plugin]:
    """Return the class of a plugin like `find`; raise `UnknownPlugin`, with a hint also for a name in capitals."""
    if name != name.lower() and (near := difflib.get_close_matches(name.lower(), plugins(kind), n=1, cutoff=NEAR)):
        raise UnknownPlugin(f"unknown {kind} '{name}'; did you mean '{near[0]}'?")
    return find(kind, name)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def register() -> None:
    """Put the whole configuration into Hydra's ConfigStore."""
    for group in GROUPS:
        for name, node in options(group).items():
            _store(name, node, group)
    root = {
        "defaults": [
            *({group: default_choices()[group]} for group in GROUPS),
            {"override hydra/hydra_logging": "none"},
            {"override hydra/job_logging": "none"},  # Hydra's default leaves a log file in the working folder
            "_self_",
        ],
        **base(),
        "hydra": {
            "run": {"dir": "."},
            "sweep": {"dir": ".", "subdir": "."},
            "output_subdir": None,
            "job": {"name": CONFIG_NAME, "chdir": False},
        },
    }
    _store(CONFIG_NAME, root)


def _store(name: str, node: dict[str, Any], group: str | None = None) -> None:
    """Store a node unless the same one is there: OmegaConf takes longer to make a node than to read one."""
    store = ConfigStore.instance()
    folder = store.repo.get(group, {}) if group else store.repo
    known = folder.get(f"{name}.yaml")
    if known is None or repr(OmegaConf.to_container(known.node)) != repr(node):  # as texts: 1 == 1.0
        store.store(group=group, name=name, node=node)


def base() -> dict[str, Any]:
    """Return the configuration without its groups."""
    return {
        **what_defaults(),
        "addon": {name: _plain(defaults_of(cls)) for name, cls in plugins("addon").items()},
        "diagnostics": _plain(defaults_of(Diagnostics)),
        **how_defaults(),
    }


def by_hydra(words: Sequence[str], hydra_config: bool = False) -> DictConfig:
    """Return Hydra's composition of overrides as written, with `hydra_config` including Hydra's own node."""
    register()
    try:
        with _own_hydra():
            return compose(CONFIG_NAME, list(words), return_hydra_config=hydra_config)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(str(error).strip().split("\n")[0]) from None


@contextlib.contextmanager
def _own_hydra() -> Iterator[None]:
    """Initialise Hydra, which may be in use already: by a notebook, or by an application that calls `fedspan.run`."""
    callers = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("fedspan.benchmark", job_name="fedspan", version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = callers


def plain_config(config: DictConfig) -> dict[str, Any]:
    """Return a composed configuration as plain Python, without Hydra's own node."""
    return {
        key: value
        for key, value in cast(dict[str, Any], OmegaConf.to_container(config, resolve=False)).items()
        if key != "hydra"
    }


def override_words(overrides: Mapping[str, Any]) -> list[str]:
    """Return overrides as written on a command line."""
    return [override_text(key, value) for key, value in overrides.items()]


def resolve(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration that Hydra composes from plain `overrides`; unknown names raise `UserError`.

    For planning and for the jobs of a grid: faster than Hydra, which takes 0.1 s per cell. A contract test checks that
    the two agree for every plugin and field.
    """
    return Composer().resolve(overrides)


class Composer:
    """Composer of the cells of one grid: shared parts are looked up, checked and built once.

    Configurations share their parts too, so they must not be modified.
    """

    def __init__(self) -> None:
        self._base: dict[str, Any] | None = None
        self._options: dict[tuple[str, str], dict[str, Any]] = {}
        self._nodes: dict[tuple[str, int, str], Any] = {}  # with settings, by the node without settings
        self._built: dict[tuple[str, int], tuple[Any, Any]] = {}  # by the node's id; the node is kept to keep its id
        self._rules: dict[str, tuple[SettingRule, ...]] = {}
        self._defaults = defaults_of(What)
        self._whats: dict[str, What] = {}  # by its values

    def resolve(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration of `overrides`, like the function `resolve`."""
        load_files(paths_of(overrides.get("plugins")))  # each process that composes a cell imports its plugins
        if self._base is None:
            self._base = base()
        config, choices = dict(self._base), {**default_choices(), **overrides}
        for group in GROUPS:
            config[group] = self._option(group, str(choices[group]))
        nested: dict[str, list[tuple[str, Any]]] = {}
        for key, value in sorted(overrides.items(), key=lambda item: item[0] != "addons"):  # first: hints look at them
            node, dot, _ = key.partition(".")
            if dot:
                nested.setdefault(node, []).append((key, value))
            elif key not in GROUPS:
                assign(config, key, value)
        for node, settings in nested.items():
            self._assign(config, node, settings)
        return config

    def _assign(self, config: dict[str, Any], node: str, settings: Sequence[tuple[str, Any]]) -> None:
        """Set dotted keys below a node of `config`; equal values give the same node object."""
        known = node, id(config.get(node)), repr(settings)
        if known not in self._nodes:
            for key, value in settings:
                assign(config, key, value)
            self._nodes[known] = config[node]
        config[node] = self._nodes[known]

    def _option(self, group: str, name: str) -> dict[str, Any]:
        if (group, name) not in self._options:
            self._options[group, name] = option(group, name)
        return self._options[group, name]

    def tuned(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tuned settings of the chosen protocol, except those that `overrides` set.

        A rule applies to a cell that has every setting under its `when`: all of the listed `addons`, or none for an
        empty list, and one of the listed values of any other setting. Later rules override earlier ones.
        """
        name = str(overrides.get("protocol", default_choices()["protocol"]))
        if name not in self._rules:
            self._rules[name] = preset(name).tuned
        config = self.resolve(overrides) if self._rules[name] else {}
        found: dict[str, Any] = {}
        for rule in self._rules[name]:
            if applies(rule, config):
                found |= rule.set
        return {key: value for key, value in found.items() if key not in overrides}

    def cell(self, overrides: Mapping[str, Any]) -> Cell:
        """Return the cell of `overrides` with the tuned settings of its protocol."""
        return self.make_cell(self.resolve({**overrides, **self.tuned(overrides)}))

    def make_cell(self, config: Mapping[str, Any]) -> Cell:
        """Return the cell of a configuration, like the function `make_cell`."""
        what = self._what(config)
        addons = [self._addon(name, config["addon"].get(name, {})) for name in what.addons]
        try:
            return Cell(
                dataset=self._build("dataset", config["dataset"], _dataset),
                partition=self._build("partition", config["partition"], _plugin),
                clients=what.clients,
                participation=what.participation,
                unseen=what.unseen,
                fleet=self._build("fleet", config["fleet"], _plugin),
                model=self._build("model", config["model"], _plugin),
                algorithm=self._build("algorithm", config["algorithm"], _plugin),
                addons=tuple(addons),
                protocol=self._build("protocol", config["protocol"], partial(_settings, Protocol)),
                seed=what.seed,
                scale=what.scale,
                diagnostics=self._build("diagnostics", config["diagnostics"], partial(_settings, Diagnostics)),
            )
        except OSError as error:  # a path that no file system allows
            raise UserError(f"cannot read {str(error.filename)[:60]}: {error.strerror or error}") from None

    def _what(self, config: Mapping[str, Any]) -> What:
        plain = {name: config[name] for name in self._defaults}
        if isinstance(plain["addons"], str):
            plain["addons"] = [plain["addons"]]
        known = repr(plain)
        if known not in self._whats:
            self._whats[known] = from_values(What, plain, "")
        return self._whats[known]

    def _addon(self, name: str, node: Mapping[str, Any]) -> Any:
        return self._build(f"addon.{name}", node, lambda where, node: _plugin(where, {"name": name, **node}))

    def _build(self, where: str, node: Any, make: Callable[[str, Mapping[str, Any]], Any]) -> Any:
        """Return the result of `make` for the node at `where`, built once per node."""
        known = where, id(node)
        if known not in self._built:
            self._built[known] = node, make(where, node)
        return self._built[known][1]


def _plugin(where: str, node: Mapping[str, Any]) -> Any:
    """Return the plugin of a node of a configuration; raise `UserError` if it is invalid."""
    kind = where.partition(".")[0]
    values = {key: value for key, value in node.items() if key != "name"}
    cls = _find(kind, str(node["name"]))
    try:
        return from_values(cls, values, where)
    except UserError:
        raise
    except Exception as error:  # from the plugin's own checks of its settings
        raise HookError(blame(error) or f"{kind} '{cls.name}': {type(error).__name__}: {error}") from error


def _dataset(where: str, node: Mapping[str, Any]) -> Dataset:
    dataset: Dataset = _plugin(where, node)
    dataset.check_places()  # later, Python 3.14 would treat a path that it cannot look at as a missing one
    return dataset


def _settings(cls: type[Any], where: str, node: Mapping[str, Any]) -> Any:
    return from_values(cls, node, where)


def assign(config: dict[str, Any], key: str, value: Any) -> None:
    """Set an existing dotted key of `config`; raise `UserError` with a suggestion for an unknown one.

    The nodes on the path to it are copied: other configurations may share them.
    """
    *parents, last = key.split(".")
    node: Any = config
    for depth, part in enumerate((*parents, last)):
        if not isinstance(node, dict) or part not in node:
            walked = (*parents, last)[:depth]
            where = ".".join(walked)
            holder = f" of {where}={node['name']}" if isinstance(node, dict) and where and "name" in node else ""
            raise UserError(f"unknown setting '{key}'{holder}{_near(key, part, node, walked, config)}")
        node = node[part]
    if isinstance(node, dict):
        first = next(_leaves(node, f"{key}."), "")
        said = f"holds several settings; set them one by one, as {first}=..." if first else "has no settings"
        raise UserError(f"'{key}' {said}")
    if last == "name" and parents and parents[0] in GROUPS:
        raise UserError(f"'{key}' cannot be set; choose with {parents[0]}=...")
    parent = config
    for part in parents:
        parent[part] = parent = dict(parent[part])
    parent[last] = value


def _near(key: str, part: str, node: Any, walked: Sequence[str], config: Mapping[str, Any]) -> str:
    """Return a hint at a setting similar to `key`, else one named `part` elsewhere, else one similar to `part` here.

    `node` is the value reached by the names before `part`; a list, as in ``addons.feddecorr.beta``, holds no settings.
    A name without dots does not mean a setting of an add-on that is not chosen, which would have no effect.
    """
    unchosen = () if walked else tuple(f"addon.{name}." for name in config["addon"] if name not in _addons(config))
    leaves = [leaf for leaf in _leaves(config) if not leaf.startswith(unchosen)]
    if near := difflib.get_close_matches(key, leaves, n=1, cutoff=NEAR):
        return f"; did you mean '{near[0]}'?"
    if not isinstance(node, dict):
        return f"; '{'.'.join(walked)}' is a setting itself"
    if part == "tune" and not walked:
        return "; it is a setting of boards that tune (board=digits_tuned)"
    settable = [name for name in node if walked or name in GROUPS or not isinstance(node[name], dict)]
    names = [name for name in settable if name != "name"]
    kind = prefix if (prefix := ".".join(walked)) in GROUPS and prefix != "protocol" else ""
    if having := [name for name, cls in plugins(kind).items() if part in defaults_of(cls)] if kind else []:
        return f"; it is a setting of {kind}={', '.join(having)}"
    if elsewhere := [name for name in leaves if name.split(".")[-1] == part]:
        return f"; did you mean '{elsewhere[0]}'?"
    if not walked and not closest(part, names):
        if near := [leaf for leaf in leaves if leaf.split(".")[-1].startswith(part)]:
            return f"; did you mean '{near[0]}'?"
        if near := closest(part, [leaf.split(".")[-1] for leaf in leaves]):
            return f"; did you mean '{next(leaf for leaf in leaves if leaf.split('.')[-1] == near[0])}'?"
    if not walked and (owners := [one for one in _owners() if part in defaults_of(one)]):
        return f"; it is a setting of {', '.join(choice(one.kind, one.name) for one in owners)}"
    hint = did_you_mean(part, names)
    return hint.replace("did you mean '", f"did you mean '{prefix}.") if prefix else hint


def _owners() -> list[type[Plugin]]:
    return [cls for kind in (*GROUPS, "addon") if kind != "protocol" for cls in plugins(kind).values()]


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the names of all settings; those of the chosen plugins come before those of add-ons."""
    for name, value in sorted(config.items(), key=lambda item: item[0] == "addon"):
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        elif prefix and name != "name":
            yield prefix + name


def make_cell(config: Mapping[str, Any]) -> Cell:
    """Return the cell of a composed configuration, every plugin built and checked; raise `UserError` if invalid."""
    return Composer().make_cell(config)


def tuned(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tuned settings of the chosen protocol, except those that `overrides` set."""
    return Composer().tuned(overrides)


def kept(point: Mapping[str, Any], choice: Mapping[str, Any], keep: Collection[str] = ()) -> dict[str, Any]:
    """Return a cell's settings without those of plugins that `choice` replaces; `keep` stays."""
    before = {**default_choices(), **point}
    gone = [kind for kind in GROUPS if kind != "protocol" and choice.get(kind, before[kind]) != before[kind]]
    if "addons" in choice:
        gone += [f"addon.{name}" for name in _addons(before) if name not in _addons(choice)]
    return {
        key: value
        for key, value in point.items()
        if key in keep or not any(f"{key}.".startswith(f"{one}.") for one in gone)
    }


def fitting(asked: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in `asked` that the plugins of a cell have; the others may be those of a scale's plugins."""
    import_plugins_of(point)
    choices = {**default_choices(), **point}

    def fits(key: str) -> bool:
        group, _, name = key.partition(".")
        return not name or group not in GROUPS or name in option(group, str(choices[group]))

    return {key: value for key, value in asked.items() if fits(key)}


def _addons(settings: Mapping[str, Any]) -> list[str]:
    named = settings.get("addons") or []
    return list(named) if isinstance(named, (list, tuple)) else [named]
