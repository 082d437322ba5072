"""Compatibility of add-ons with algorithms, found by building each pair as a cell would."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from fedspan.benchmark.component import Component
from fedspan.benchmark.contract import blame
from fedspan.benchmark.errors import HookError, Incompatible
from fedspan.benchmark.method import disclosure
from fedspan.benchmark.registry import plugins
from fedspan.benchmark.spec.cell import Cell
from fedspan.benchmark.spec.compose import make_cell
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.task import Data
from fedspan.benchmark.training.costs import untrained_result, without_values

WORKS, ALONE = "+", "alone"


@dataclass(frozen=True)
class Compatibility:
    """A matrix of algorithms and add-ons; `why` maps (algorithm, add-on) to the reason against it.

    The add-on `ALONE` stands for none: its reason is why an algorithm does not even work alone.
    """

    title: str
    algorithms: tuple[str, ...]
    addons: tuple[str, ...]
    why: Mapping[tuple[str, str], str]

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Compatibility:
        """Return the matrix for the task, model and protocol of `config`; its own add-ons precede each tested one."""
        cell = make_cell(config)
        data = cell.dataset.prepare(How.of(config).data)
        algorithms = {name: cast(Component, cls()) for name, cls in plugins("algorithm").items()} | {
            cell.algorithm.name: cell.algorithm
        }
        taken = {addon.name for addon in cell.addons}
        addons = {
            name: make_cell({**config, "addons": [name]}).addons for name in plugins("addon") if name not in taken
        }
        why: dict[tuple[str, str], str] = {}
        for algorithm, chosen in algorithms.items():
            for addon, stack in {ALONE: (), **addons}.items():
                reason = why_not(dataclasses.replace(cell, algorithm=chosen, addons=(*cell.addons, *stack)), data)
                if reason is not None:
                    why[algorithm, addon] = reason
        title = f"add-ons on algorithms ({cell.model.name}, {cell.dataset.name}, momentum {cell.protocol.momentum:g})"
        return cls(title, tuple(algorithms), (ALONE, *addons), why)

    @property
    def reasons(self) -> list[str]:
        """The distinct reasons, in the order of the matrix."""
        return list(dict.fromkeys(self.why.values()))

    @property
    def disclosures(self) -> dict[str, str]:
        """What the server learns beyond sums, by the name of the algorithm or add-on that discloses it."""
        classes = {**plugins("algorithm"), **plugins("addon")}
        names = (*self.algorithms, *self.addons)
        return {name: more for name in names if name in classes and (more := disclosure(classes[name]))}

    def mark(self, algorithm: str, addon: str) -> str:
        """Return the mark of a pair: +, or the number of the reason against it."""
        reason = self.why.get((algorithm, addon))
        return WORKS if reason is None else str(self.reasons.index(reason) + 1)


def why_not(cell: Cell, data: Data) -> str | None:
    """Return why a cell is impossible on `data`, or None; a broken plugin is a reason too."""
    try:
        trainer, state = without_values(cell, data)
        if trainer.method.guard:  # only a client's hand-over shows what leaves it
            untrained_result(trainer, state)
    except (Incompatible, HookError) as reason:
        return str(reason)
    except Exception as error:
        if (broken := blame(error)) is None:
            raise
        return broken
    return None
