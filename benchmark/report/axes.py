"""Axes of a board: the label of each cell along `method`, `partition`, `protocol.rounds`, ...

A plugin's label is its name and those fields that vary between the board's cells with that plugin, or that
differ from the plugin's default: ``dirichlet(alpha=0.05)``, ``iid``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

from fedspan.benchmark import names
from fedspan.benchmark.errors import UserError, did_you_mean
from fedspan.benchmark.fields import defaults_of
from fedspan.benchmark.registry import SINGLE_KINDS
from fedspan.benchmark.spec.board import Table
from fedspan.benchmark.spec.plan import PlannedCell

NONE = "none"  # no add-ons, or a setting that a cell does not have
PROTOCOL = "protocol"
TUNING = "tuning"  # whether a row has the defaults or the settings that its trials chose
DEFAULT, TUNED = "default", "tuned"  # labels along it
PLUGIN_AXES = ("method", "addons", PROTOCOL, *SINGLE_KINDS)
PARTS = {"method": ("algorithm", "addons")}


def kept_axes(table: Table) -> list[str]:
    """Return the table's axes along which a cell and its reference have the same label.

    Raise `UserError` for an axis of `minus` that the table lacks.
    """
    parts = [part for axis in (*table.rows, *table.columns) for part in PARTS.get(axis, (axis,))]
    known = [*parts, *(whole for whole, its in PARTS.items() if set(its) <= set(parts))]
    for axis in table.minus:
        if axis not in known:
            raise UserError(f"minus: '{axis}' is not an axis of the table{did_you_mean(axis, known)}")
    told = {part for axis in table.minus for part in PARTS.get(axis, (axis,))}
    return [part for part in parts if part not in told]


def text(value: Any) -> str:
    """Return a setting's value as a person would type it."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(text, value))}]" if value else NONE
    return str(value)


def choices_of(wanted: Any) -> Sequence[Any]:
    """Return the values that a selection or a recipe's line allows: those of a list, or the only one."""
    return wanted if isinstance(wanted, (list, tuple)) and wanted else [wanted]


def without_settings(label: str) -> str:
    """Return a label without the settings of its plugins: ``fedprox + feddecorr``."""
    return " + ".join(part.split("(")[0] for part in label.split(" + "))


def with_setting(label: str, name: str, value: str) -> str:
    """Return a plugin's label with one more setting: ``dirichlet(alpha=0.5, min_size=1)``."""
    plugin, _, rest = label.partition("(")
    return f"{plugin}({name}={value}{', ' + rest if rest else ')'}"


def title(axis: str) -> str:
    """Return the heading of an axis: ``Learning rate`` for ``protocol.lr``."""
    said = names.of_setting(axis)
    return said[:1].upper() + said[1:]


def named(axis: str, label: str) -> str:
    """Return a label that is clear without its axis, as boards write it: ``clients=10``, but ``iid``."""
    if axis not in PLUGIN_AXES:
        return f"{axis}={label}"
    return f"no {names.of_setting(axis)}" if label == NONE else label


def in_words(axis: str, label: str) -> str:
    """Return a label in plain words that is clear without its axis: ``FedAvg + FedDecorr (released form)``."""
    if label == NONE:
        return f"no {names.of_setting(axis)}"
    if axis in PLUGIN_AXES or axis == TUNING:
        return names.of_axis_label(axis, label)
    said = names.of_setting(axis)
    return (
        names.counted_as(int(label), said.removesuffix("s"))
        if said.endswith("s") and label.isdecimal()
        else f"{said} {label}"
    )


def under_title(axis: str, label: str) -> str:
    """Return a label in plain words where the axis is named beside it, as by a column's title or under ticks."""
    return in_words(axis, label) if axis in PLUGIN_AXES else label


def common_and_distinct(tasks: Iterable[str]) -> tuple[str, dict[str, str]]:
    """Return the parts of their labels that all tasks have in common, and those that distinguish each task."""
    parts = {task: names.split(task, ", ") for task in tasks}
    common = [part for part in next(iter(parts.values()), []) if all(part in others for others in parts.values())]
    own = {task: ", ".join(part for part in mine if part not in common) or task for task, mine in parts.items()}
    return ", ".join(common), own


class Axes:
    """Labels of a board's cells, in cell order.

    At any scale, tables and figures select cells by their labels at the full size.
    `more` holds labels along axes that are not settings.
    """

    def __init__(self, cells: Sequence[PlannedCell], more: Mapping[str, Sequence[str]] | None = None) -> None:
        self._values: dict[tuple[str, str], dict[str, set[str]]] = {}
        self._known: dict[str, list[str]] = {name: list(labels) for name, labels in (more or {}).items()}
        self._seeds = [planned.cell.seed for planned in cells]
        self._alike = [(planned.overrides.get(PROTOCOL), planned.cell.identity_without_seed) for planned in cells]
        self._first: dict[tuple[Any, ...], PlannedCell] = {}  # the first of the cells that differ only in the seed
        for alike, planned in zip(self._alike, cells, strict=True):
            self._first.setdefault(alike, planned)
        for planned in self._first.values():
            for kind, spec, _ in _plugins(planned):
                seen = self._values.setdefault((kind, spec["name"]), {})
                for field, value in spec.items():
                    seen.setdefault(field, set()).add(json.dumps(value))
        scaled = any(planned.full for planned in cells)
        self._full = Axes([replace(one, cell=one.origin, full=None) for one in cells], more) if scaled else None

    def labels(self, axis: str, cells: Iterable[int] | None = None) -> list[str]:
        """Return the labels along `axis` of all cells, or of `cells` by position; raise `UserError` if none has it."""
        if axis not in self._known:
            self._known[axis] = self._labels(axis)
        labels = self._known[axis]
        return labels if cells is None else [labels[i] for i in cells]

    def matches(self, axis: str, wanted: Any, cells: Iterable[int] | None = None) -> list[bool]:
        """Return for each cell whether its label, or its plugin's bare name, is `wanted` or one of them."""
        if self._full is not None:
            return self._full.matches(axis, wanted, cells)
        choices = set(map(text, choices_of(wanted)))
        return [label in choices or without_settings(label) in choices for label in self.labels(axis, cells)]

    def select(self, field: str, wanted: Mapping[str, Any], cells: Iterable[int]) -> list[int]:
        """Return those of `cells`, by position, that match along each axis `wanted` in a `field` of a table or figure.

        Raise `UserError` for an unknown axis, or if none matches.
        """
        left = list(cells)
        for axis, label in wanted.items():
            try:
                left = list(compress(left, self.matches(axis, label, left)))
            except UserError as error:
                raise UserError(f"{field}: {error}") from None
            if not left:
                known = set((self._full or self).labels(axis))
                near = did_you_mean(text(label), known | set(map(without_settings, known)))
                raise UserError(f"{field}: {axis}={text(label)} selects no cell{near}")
        return left

    def _labels(self, axis: str) -> list[str]:
        if axis == "seed":
            return list(map(text, self._seeds))
        if axis in PLUGIN_AXES:
            kinds = PARTS.get(axis, (axis,))
            of = {
                alike: " + ".join(self._plugin(*plugin) for plugin in _plugins(planned) if plugin[0] in kinds) or NONE
                for alike, planned in self._first.items()
            }
        else:
            settings = {alike: flat(planned.cell.settings) for alike, planned in self._first.items()}
            if not any(axis in known for known in settings.values()):
                known = {name for cell in settings.values() for name in cell} | set(PLUGIN_AXES)
                raise UserError(f"unknown axis '{axis}'{did_you_mean(axis, known)}")
            of = {alike: text(known.get(axis)) for alike, known in settings.items()}
        return [of[alike] for alike in self._alike]

    def _plugin(self, kind: str, spec: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
        varying = self._values[kind, spec["name"]]
        shown = [
            f"{field}={text(value)}"
            for field, value in spec.items()
            if field not in ("name", "version")
            and (len(varying[field]) > 1 or (field in defaults and json.dumps(value) != json.dumps(defaults[field])))
        ]
        return f"{spec['name']}({', '.join(shown)})" if shown else str(spec["name"])


def _plugins(planned: PlannedCell) -> list[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Return (axis, spec with its name, default values) of each plugin of a cell and of its protocol."""
    cell, what = planned.cell, planned.cell.settings
    plugins = [(kind, what[kind], defaults_of(type(getattr(cell, kind)))) for kind in SINGLE_KINDS]
    plugins += [
        ("addons", spec, defaults_of(type(addon))) for spec, addon in zip(what["addons"], cell.addons, strict=True)
    ]
    preset = {"name": str(planned.overrides.get(PROTOCOL, "default")), **what[PROTOCOL]}
    return [*plugins, (PROTOCOL, preset, {})]


def flat(what: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cell's spec keyed by dotted paths, as in overrides: ``partition``, ``addon.feddecorr.beta``."""
    settings: dict[str, Any] = {}
    for key, value in what.items():
        if key == "addons":
            settings[key] = [addon["name"] for addon in value]
            for addon in value:
                settings |= {f"addon.{addon['name']}.{field}": item for field, item in addon.items() if field != "name"}
        elif isinstance(value, dict):
            settings |= {key if field == "name" else f"{key}.{field}": item for field, item in value.items()}
        else:
            settings[key] = value
    return settings
