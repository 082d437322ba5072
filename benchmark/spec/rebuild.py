"""Reconstruction of a cell and its settings from the specification in a record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedspan.benchmark.errors import CorruptFile, UserError
from fedspan.benchmark.fields import defaults_of
from fedspan.benchmark.registry import SINGLE_KINDS, find, prefix
from fedspan.benchmark.spec.board import Overrides
from fedspan.benchmark.spec.cell import key_of
from fedspan.benchmark.spec.plan import PlannedCell, plan


class OtherVersion(UserError):
    """A record whose cell the installed plugins and settings do not reproduce."""


class DataElsewhere(OtherVersion):
    """A record that identifies its images only by content, which no setting can select."""


def rebuild(spec: Mapping[str, Any]) -> PlannedCell:
    """Return the cell of a record's `spec`, and its settings.

    Raises `CorruptFile` if it is not a specification, `OtherVersion` if the installed sources make another cell of it,
    `DataElsewhere` if its images are a user's own, and `UserError` if a plugin is not installed or rejects a setting.
    """
    try:
        settings = settings_of(spec)
        versions = [(kind, str(part["name"]), part["version"]) for kind, part in _plugins(spec)]
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptFile(f"its spec is incomplete: {type(error).__name__}: {error}") from error
    for kind, name, version in versions:
        if (here := find(kind, name).version) != version:
            raise OtherVersion(f"it was made with version {version!r} of {kind} '{name}', not {here}")
    dataset = spec["dataset"]
    if "content" in dataset and "content" not in defaults_of(find("dataset", str(dataset["name"]))):
        raise DataElsewhere(f"the images of {dataset['name']} are known by their content alone; their owner can run it")
    [planned] = plan([settings])
    if planned.cell.key != key_of(dict(spec)):
        raise OtherVersion("its settings make another cell with the sources at hand")
    return planned


def settings_of(spec: Mapping[str, Any]) -> Overrides:
    """Return the settings of a specification one by one, without any preset."""
    settings: Overrides = {name: spec[name] for name in ("clients", "participation", "seed", "scale")}
    settings |= {"unseen": spec["unseen"]} if "unseen" in spec else {}
    settings |= {f"protocol.{name}": value for name, value in spec["protocol"].items()}
    settings |= {f"diagnostics.{name}": value for name, value in spec.get("diagnostics", {}).items()}
    settings["addons"] = [addon["name"] for addon in spec["addons"]]
    for kind, part in _plugins(spec):
        if kind in SINGLE_KINDS:
            settings[kind] = part["name"]
        own = prefix(kind, part["name"])
        settings |= {f"{own}.{name}": value for name, value in part.items() if name not in ("name", "version")}
    return settings


def _plugins(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from ((kind, spec[kind]) for kind in SINGLE_KINDS if kind in spec or kind != "fleet")
    yield from (("addon", part) for part in spec["addons"])
