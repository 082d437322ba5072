"""What a worker holds for one cell, net, method and data, and how it does what it is asked for."""

from __future__ import annotations

import dataclasses
import pickle
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from typing import Any

from torch import Tensor

from fedspan.benchmark import numerics, registry
from fedspan.benchmark.component import acts_in
from fedspan.benchmark.contract import blame
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.records.provenance import processor, versions
from fedspan.benchmark.records.sources import engine_digest, source_digests
from fedspan.benchmark.spec.cell import Cell
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.training.meter import Meter
from fedspan.benchmark.training.process import settle
from fedspan.benchmark.training.run import Run
from fedspan.benchmark.training.state import Row, State
from fedspan.benchmark.training.workers.crew import Said
from fedspan.benchmark.training.workers.messages import Packed, pack, unpack

COUNTED = ("flops", "memory", "flops_of_step")  # of a meter, what a report carries


@dataclass(frozen=True)
class Setup:
    """A cell to work for. It is pickled apart, because plugins from files must be loaded before it can be read."""

    how: How
    mode: str
    cell: bytes

    @classmethod
    def of(cls, cell: Cell, how: How) -> Setup:
        """Return the setup of a cell for the processes that this one starts."""
        return cls(dataclasses.replace(how, workers=None), numerics.prepared(), pickle.dumps(cell))


@dataclass(frozen=True)
class Papers:
    """Who a worker is: `host`, and what its bits depend on, each under the name that a refusal uses."""

    host: str
    depends: Mapping[str, str]

    @classmethod
    def of(cls, run: Run) -> Papers:
        """Return those of a process that has prepared the cell."""
        known = {f"version of {name}": number for name, number in versions().items()}
        known |= {f"source of {name}": digest for name, digest in source_digests(run.cell).items()}
        known |= {"source of the engine": engine_digest(), "numerics": run.numerics, "device": run.device.type}
        known |= {name.replace("_", " "): digest for name, digest in run.digests.items()}
        if run.numerics != numerics.PORTABLE:
            known["processor"] = processor()
        return cls(platform.node(), known)

    def conflict(self, driver: Papers) -> str:
        """Say in what a worker differs from the driver, or nothing."""
        for name, mine in driver.depends.items():
            if (theirs := self.depends.get(name, "none")) != mine:
                return f"the {name} is {theirs[:60]}, and {mine[:60]} at the driver"
        return ""


@dataclass
class Report:
    """The outcome of a call, and what it cost: the meter of the worker over the call, and its seconds."""

    value: Any = None
    error: Any = None
    flops: dict[str, int] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    flops_of_step: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def book(self, meter: Meter) -> None:
        """Add what was counted to the driver's meter."""
        for purpose, number in self.flops.items():
            meter.flops[purpose] = meter.flops.get(purpose, 0) + number
        for purpose, most in self.memory.items():
            meter.memory[purpose] = max(meter.memory.get(purpose, 0), most)
        meter.flops_of_step = self.flops_of_step | meter.flops_of_step
        meter.worker_seconds += self.seconds


def residents_of(run: Run) -> dict[str, Any]:
    """Return what each process of a cell has of its own: in a message its name stands for it."""
    return {"trainer": run.trainer, "executor": run.alone, "state": run.state}


def news(state: State, run: Run) -> tuple[State, dict[str, int]]:
    """Return what workers must know of a state: nothing of clients, and of the server what clients are sent.

    And the FLOPs of the kinds of steps that have been counted: each is counted once.
    """
    senders = {component.name for component in run.method.components if acts_in(component, "broadcast")}
    server = {name: tree if name in senders else {} for name, tree in state.server.items()}
    bare = dataclasses.replace(state, server=server, rows={}, draw_row=None, first_row=Row({}, {}))
    return bare, run.meter.flops_of_step


class Resident:
    """One worker's copy of a cell."""

    def __init__(self, setup: Setup) -> None:
        registry.load_files(setup.how.plugins)
        registry.discover()
        numerics.switch(setup.mode)
        settle(setup.how)
        cell: Cell = pickle.loads(setup.cell)  # noqa: S301 - from the driver, which started this process
        self.run = Run(cell, setup.how)
        self.residents = residents_of(self.run)
        self.known: dict[str, int] = {}

    @property
    def papers(self) -> Papers:
        """Who this worker is."""
        return Papers.of(self.run)

    def hear(self, head: bytes, memory: Tensor) -> None:
        """Take over the driver's state; its trees may be views of `memory`, which stays as it is until the next."""
        heard, self.known = unpack(head, memory, device=self.run.device)
        state = self.run.state
        for item in dataclasses.fields(heard):
            if item.name not in ("rows", "draw_row", "first_row"):
                setattr(state, item.name, getattr(heard, item.name))
        state.rows = {}
        state.refresh_first_row()

    def do(self, head: bytes, memory: Tensor) -> Packed:
        """Make a call; return its report, packed."""
        began = time.perf_counter()
        meter = self.run.meter = self.run.trainer.meter = Meter(flops_of_step=dict(self.known))

        def report(**outcome: Any) -> Packed:
            seconds = time.perf_counter() - began
            return pack(Report(**outcome, **{name: getattr(meter, name) for name in COUNTED}, seconds=seconds))

        try:
            function, arguments = unpack(head, memory, self.residents, self.run.device)
            return report(value=function(*arguments))
        except (Exception, SystemExit) as error:
            return report(error=sendable(error))
        finally:
            self.known |= meter.flops_of_step


def prepared(setup: Setup) -> tuple[Resident | None, Said]:
    """Return a worker's copy of a cell, and what it says of it: its papers, or why there is none."""
    try:
        resident = Resident(setup)
        return resident, ("ready", resident.papers)
    except Exception as error:
        said = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        return None, ("refused", f"on {platform.node()}: {said}")


def sendable(error: BaseException) -> ExceptionWithTraceback:
    """Return an error with its traceback as text and the plugin to blame, for a process that has no frames of it."""
    if said := blame(error):
        error.blamed = said  # type: ignore[attr-defined]
    found = ExceptionWithTraceback(error, error.__traceback__)
    try:
        pickle.loads(pickle.dumps(found))  # noqa: S301 - made here
    except Exception:
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        found = ExceptionWithTraceback(plain, error.__traceback__)
    return found
