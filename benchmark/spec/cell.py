"""A cell: task x model x method x protocol x seed. Its key is a hash of everything that changes its result."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from fedspan.benchmark.component import Component
from fedspan.benchmark.errors import UserError, require
from fedspan.benchmark.fleet import Fleet
from fedspan.benchmark.method import Method, compose
from fedspan.benchmark.protocol import Protocol
from fedspan.benchmark.registry import Plugin
from fedspan.benchmark.spec.diagnostics import Diagnostics
from fedspan.benchmark.task import Dataset, Model, Partition, share_of

MOST_CLIENTS = 1_000_000
SPEC_BYTES = 6000  # of a cell's settings, which its record holds twice: as its spec and as a quoted command

Part = Plugin | Protocol | Diagnostics
T = TypeVar("T")

SCHEMA = 1  # of records and keys; increase it when their meaning changes


def key_of(what: Mapping[str, Any]) -> str:
    """Return the key of a cell: 20 hexadecimal digits of sha256 over its canonical JSON."""
    return _key(_canonical(what))


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def _key(canonical: str) -> str:
    return hashlib.sha256(canonical.encode()).hexdigest()[:20]


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as plain JSON values."""
    plain: dict[str, Any] = json.loads(json.dumps(values))
    return plain


def _once(part: Part, name: str, make: Callable[[], T]) -> T:
    """Return the result of `make`, stored in a part of a cell under `name`: cells with the same part share it."""
    known = vars(part)
    if name not in known:
        object.__setattr__(part, name, make())
    found: T = known[name]
    return found


def _plain_what(part: Part) -> dict[str, Any]:
    """Return the identity of a part of a cell, as plain JSON values."""
    return _once(part, "_plain_what", lambda: _plain(part.what()))


def _plain_settings(part: Part) -> dict[str, Any]:
    """Return all settings of a part, as plain JSON values; of diagnostics only those of active measurements."""
    if isinstance(part, Diagnostics):
        return _plain_what(part)
    settings = part.settings
    return _once(part, "_plain_settings", lambda: _plain(settings()))


def _described(value: Any, by: Callable[[Part], dict[str, Any]]) -> Any:
    """Return a value of a cell as plain JSON: `by` describes its parts."""
    if isinstance(value, tuple):
        return [by(part) for part in value]
    return by(value) if isinstance(value, Part) else value


def _text(value: Any) -> str:
    """Return a value of a cell as canonical JSON; cells with the same part share its text."""
    if isinstance(value, tuple):
        return f"[{','.join(map(_text, value))}]"
    if not isinstance(value, Part):
        return str(value) if type(value) is int else _canonical(value)
    return _once(value, "_text", lambda: _canonical(_plain_what(value)))


def training_clients(clients: int, unseen: float) -> int:
    """Return the number of clients that can train; the share `unseen` cannot, at least one client unless it is 0."""
    return clients - (max(1, share_of(clients, unseen)) if unseen else 0)


@dataclass(frozen=True)
class Cell:
    """One run, fully specified. `compose.make_cell` builds it from a configuration."""

    dataset: Dataset
    partition: Partition
    clients: int
    participation: float
    unseen: float
    fleet: Fleet
    model: Model
    algorithm: Component
    addons: tuple[Component, ...]
    protocol: Protocol
    seed: int
    scale: str
    diagnostics: Diagnostics
    key: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(self.clients >= 1, "clients", "must be at least 1", self.clients)
        require(self.clients <= MOST_CLIENTS, "clients", f"must be at most {MOST_CLIENTS:,}", self.clients)
        require(0 < self.participation <= 1, "participation", "must lie in (0, 1]", self.participation)
        require(0 <= self.unseen < 1, "unseen", "must lie in [0, 1)", self.unseen)
        if not self.training_clients:
            raise UserError(f"unseen={self.unseen:g} of clients={self.clients} leaves no client to train; lower it")
        require(self.seed >= 0, "seed", "must not be negative", self.seed)
        require(self.dataset.limit >= 0, "dataset.limit", "must be 0 (all) or more", self.dataset.limit)
        if (measured := self.diagnostics.round) > (rounds := self.protocol.rounds):
            raise UserError(f"diagnostics.round is {measured}, but there are {rounds} rounds; 0 is the last one")
        canonical = self._canonical()
        if 2 * len(canonical) > SPEC_BYTES:  # spaces less than double it
            size = len(json.dumps(self.what))
            require(size <= SPEC_BYTES, "the settings of a cell", f"must fit into {SPEC_BYTES} bytes", f"{size} bytes")
        object.__setattr__(self, "key", _key(canonical))

    @cached_property
    def what(self) -> dict[str, Any]:
        """Everything that changes the result, as plain JSON values."""
        return {name: _described(value, _plain_what) for name, value in self._values().items()}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Like `what`, plus later additions at their defaults: `later` fields, `unseen` and the fleet."""
        return {name: _described(value, _plain_settings) for name, value in self._values(later=True).items()}

    def _values(self, later: bool = False) -> dict[str, Any]:
        """Return the values that enter the key; with `later`, also later additions that are at their defaults."""
        values: dict[str, Any] = {"schema": SCHEMA, **{name: getattr(self, name) for name in VALUES}}
        if not (later or self.unseen):
            del values["unseen"]
        if not (later or self.fleet.acts):
            del values["fleet"]
        if not _plain_what(self.diagnostics):
            del values["diagnostics"]
        return values

    def _canonical(self) -> str:
        """Return `what` as canonical JSON, joined from the texts of parts, which thousands of cells share."""
        texts = (f'"{name}":{_text(value)}' for name, value in sorted(self._values().items()))
        return f"{{{','.join(texts)}}}"

    @property
    def training_clients(self) -> int:
        """The number of clients that can take part in training."""
        return training_clients(self.clients, self.unseen)

    @property
    def components(self) -> tuple[Component, ...]:
        """The method's components, base algorithm first."""
        return (self.algorithm, *self.addons)

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """The plugins that its result depends on."""
        parts = (self.dataset, self.partition, self.model, *self.components)
        return (*parts, self.fleet) if self.fleet.acts else parts

    @cached_property
    def training(self) -> Cell:
        """The cell without the add-ons that act only after training."""
        trains = tuple(addon for addon in self.addons if addon.trains)
        return self if trains == self.addons else dataclasses.replace(self, addons=trains)

    @property
    def train_key(self) -> str:
        """The key of its training: cells with equal train keys train the same model."""
        return self.training.key

    @property
    def bound(self) -> bool:
        """Whether its method sees the images or features of all clients: a bound on federated methods, not one."""
        return any(component.pools or component.one_client for component in self.components)

    def method(self) -> Method:
        """Return the composed method; raise `Incompatible` for an impossible stack."""
        return compose(self.algorithm, self.addons)

    @property
    def method_label(self) -> str:
        """The method in words, with the settings that differ from the defaults."""
        return " + ".join(component.label() for component in self.components)

    @property
    def label(self) -> str:
        """A short readable text; for a trial it includes the learning rate, which is tuned for all methods."""
        return f"{self.label_without_seed}, seed {self.seed}"

    @property
    def label_without_seed(self) -> str:
        """The same text without the seed."""
        fleet = f", {self.fleet.label()}" if self.fleet.acts else ""
        tried = f", lr {self.protocol.lr:.3g}" if self.protocol.trial else ""
        return (
            f"{self.method_label} on {self.dataset.name}/{self.partition.label()}, {self.clients} clients{fleet}{tried}"
        )

    @property
    def identity_without_seed(self) -> tuple[Any, ...]:
        """Its identity among the cells of its plan, apart from the seed: a plan's cells share equal parts."""
        return (
            *(self.clients, self.participation, self.unseen, self.scale),
            *map(id, (self.dataset, self.partition, self.fleet, self.model, self.algorithm, self.protocol)),
            *map(id, (self.diagnostics, *self.addons)),
        )


# The fields of a cell, in the order of records.
VALUES = tuple(item.name for item in dataclasses.fields(Cell) if item.init)
