"""Readable names of plugins, methods and tasks: ``FedAvg + FedDecorr (released form)`` for ``fedavg + feddecorr``.

They come from class attributes of plugins: `title`, `wording` of settings, and `identifying`, the settings named even
at their defaults. Pages, tables, the command line and MLflow share them. Settings of plugins that are not installed are
shown verbatim.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fedspan.benchmark.fields import defaults_of
from fedspan.benchmark.registry import KINDS, Plugin, plugins

CONSTANTS = {"true": True, "false": False, "none": None}
# Readable names of abbreviated settings; other settings keep their own names.
WORDS = {
    "lr": "learning rate",
    "algorithm.lr": "server learning rate",
    "lam": "lambda",
    "augment": "augmentation",
    "addons": "add-ons",
}


def title_of(kind: str, name: str) -> str:
    """Return the title of a plugin, or `name` itself if it has none."""
    cls = plugins(kind).get(name)
    return cls.title or name if cls else name


def summary_of(cls: type[Plugin]) -> str:
    """Return a plugin's summary in one sentence: `summary`, else the first line of its docstring."""
    return cls.summary or (cls.__doc__ or "").strip().partition("\n")[0]


def name_of(plugin: Plugin) -> str:
    """Return a plugin's title and, in parentheses, its settings that differ from their defaults or identify it."""
    values = {field.name: getattr(plugin, field.name) for field in dataclasses.fields(typing.cast(Any, plugin))}
    return name_from(plugin.kind, {"name": plugin.name} | values)


def name_from(kind: str, settings: Mapping[str, Any]) -> str:
    """Return the readable name of a plugin from its part of a record, with its ``name`` and fields."""
    return _titled(kind, str(settings["name"]), _settings(kind, settings))


def method_name(what: Mapping[str, Any]) -> str:
    """Return the readable name of a cell's method, from its settings (`Cell.what`, or a record's ``spec``)."""
    parts = [("algorithm", what["algorithm"]), *(("addon", addon) for addon in what["addons"])]
    return " + ".join(name_from(kind, settings) for kind, settings in parts)


def percent(share: float) -> str:
    """Return a share in percent, with three digits at most: ``10%``, ``0.286%``."""
    return f"{100 * share:.3g}%"


def counted_as(count: int, word: str, several: str = "") -> str:
    """Return a count with its noun: ``1 task``, ``2 tasks``; `several` is an irregular plural."""
    return f"{count} {word}" if count == 1 else f"{count:,} {several or word + 's'}"


def first_of(count: int, first: str) -> str:
    """Return the first of several things and the number of the others: ``moon and 2 more``."""
    return f"{first} and {count - 1} more" if count > 1 else first


def task_name(what: Mapping[str, Any]) -> str:
    """Return the readable name of a cell's task: ``CIFAR-10, 5,000 images, 10 clients, alpha 0.05``."""
    clients = counted_as(what["clients"], "client")
    if what["participation"] != 1:
        clients += f" ({percent(what['participation'])} a round)"
    if what.get("unseen"):
        clients += f", {percent(what['unseen'])} of them unseen"
    dataset, partition, fleet = what["dataset"], what["partition"], what.get("fleet")
    images = [title_of("dataset", dataset["name"]), *_settings("dataset", dataset)]
    parts = [*images, clients, _partition_name(partition["name"], _settings("partition", partition))]
    return ", ".join([*parts, name_from("fleet", fleet)] if fleet and _acts(fleet) else parts)


def _acts(fleet: Mapping[str, Any]) -> bool:
    """Return whether a fleet, given by its part of a record, changes anything."""
    cls: Any = plugins("fleet").get(str(fleet["name"]))
    return cls is None or cls().acts


def of_label(kind: str, label: str) -> str:
    """Return the name for a plugin's label: ``FedDecorr (released form, beta 0.2)`` for ``feddecorr(beta=0.2)``.

    It includes every setting in the label, because labels also hold the settings that vary on their board.
    """
    name, given = _read(label)
    return _titled(kind, name, _settings(kind, {"name": name} | given, told=set(given)))


def of_method_label(label: str) -> str:
    """Return the name for a method's label: components joined by ``+``, then settings of the protocol."""
    components, *rest = split(label, ", ")
    algorithm, *addons = split(components, " + ")
    names = [of_label("algorithm", algorithm), *(of_label("addon", addon) for addon in addons)]
    return ", ".join([" + ".join(names), *(_worded(*one.split("=", 1)) if "=" in one else one for one in rest)])


def of_partition_label(label: str) -> str:
    """Return a partition's name within a task name: ``alpha 0.05`` for ``dirichlet(alpha=0.05)``."""
    name, given = _read(label)
    return _partition_name(name, _settings("partition", {"name": name} | given, told=set(given)))


def of_setting(setting: str) -> str:
    """Return a setting's readable name: ``learning rate`` for ``protocol.lr``, ``FedDecorr beta`` for an add-on's."""
    owner, _, field = setting.rpartition(".")
    kind, _, name = owner.partition(".")
    said = WORDS.get(setting) or _field(field)
    return f"{title_of(kind, name)} {said}" if name else said


def of_value(setting: str, value: Any) -> str:
    """Return a setting and its value in words: ``learning rate 0.05``."""
    return _said(of_setting(setting), value)


def of_axis_label(axis: str, label: str) -> str:
    """Return the name for a label on a board's axis; labels of axes without plugins are returned unchanged."""
    return AXES[axis](label) if axis in AXES and label != "none" else label


def _addon_names(label: str) -> str:
    return " + ".join(of_label("addon", addon) for addon in split(label, " + "))


# Axes whose labels are those of plugins, with the functions that name them.
AXES: dict[str, Callable[[str], str]] = {
    "method": of_method_label,
    "addons": _addon_names,
    "partition": of_partition_label,
    **{kind: functools.partial(of_label, kind) for kind in KINDS if kind not in ("addon", "partition")},
}


def _partition_name(name: str, settings: list[str]) -> str:
    """Return a partition's settings, preceded by its title unless one of them measures how unequal clients are."""
    cls: Any = plugins("partition").get(name)
    return ", ".join(settings) if cls and cls.skew_field and settings else _titled("partition", name, settings)


def _titled(kind: str, name: str, settings: list[str]) -> str:
    title = title_of(kind, name)
    return f"{title} ({', '.join(settings)})" if settings else title


def _settings(kind: str, settings: Mapping[str, Any], told: set[str] | frozenset[str] = frozenset()) -> list[str]:
    """Return, in words, the settings in `told`, those changed from their defaults, and identifying ones."""
    cls = plugins(kind).get(str(settings["name"]))
    known = defaults_of(cls) if cls else {}
    words = dict(_wordings(cls)) if cls else {}
    identifying = {getattr(cls, "skew_field", ""), *cls.identifying} if cls else set()
    values = {field: value for field, value in (known | dict(settings)).items() if field not in ("name", "version")}
    shown = [
        _worded(field, value, words.get(field))
        for field, value in values.items()
        if field in told or field in identifying or _plain(value) != _plain(known.get(field, ...))
    ]
    return [text for text in shown if text]


def _wordings(cls: type[Plugin]) -> Iterator[tuple[str, str | Mapping[Any, str]]]:
    for owner in reversed(cls.__mro__):
        yield from vars(owner).get("wording", {}).items()


def _worded(field: str, value: Any, wording: str | Mapping[Any, str] | None = None) -> str:
    """Return a setting in words; empty if its wording omits it."""
    value = _value(value) if isinstance(value, str) else value
    if isinstance(wording, Mapping):
        return wording.get(value, wording.get(..., f"{field} {{}}")).format(_plain(value))
    if wording is not None:
        wording = wording.removesuffix("s") if value == 1 and wording.startswith("{} ") else wording
        return wording.format(value if isinstance(value, int | float) else _plain(value))
    return _said(_field(field), value)


def _field(name: str) -> str:
    return WORDS.get(name) or name.replace("_", " ")


def _said(what: str, value: Any) -> str:
    if isinstance(value, bool):
        return what if value else f"no {what}"
    return f"{what} {_plain(value)}"


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "-".join(map(_plain, value)) if value else "none"
    return f"{value:g}" if isinstance(value, float) and value == float(f"{value:g}") else str(value)


def _read(label: str) -> tuple[str, dict[str, Any]]:
    """Return the name and settings in a plugin's label, as written by `Plugin.label`."""
    name, opened, inside = label.partition("(")
    settings = split(inside.removesuffix(")"), ", ") if opened else []
    return name, {field: _value(value) for field, _, value in (setting.partition("=") for setting in settings)}


def _value(text: str) -> Any:
    if text.lower() in CONSTANTS:
        return CONSTANTS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        words = re.fullmatch(r"\[(.*)\]", text)
        return tuple(words[1].split(", ")) if words else text


def split(text: str, between: str) -> list[str]:
    """Split a text at separators outside brackets."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if depth == 0 and at >= start and text.startswith(between, at):
            parts.append(text[start:at])
            start = at + len(between)
    return [*parts, text[start:]]
