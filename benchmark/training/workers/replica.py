"""A worker's replica of the cell, on which it makes the calls that the driver sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fedspan.benchmark.training.meter import Meter
from fedspan.benchmark.training.state import State
from fedspan.benchmark.training.workers.messages import Packed, pack
from fedspan.benchmark.training.workers.replies import reply_of

if TYPE_CHECKING:
    from fedspan.benchmark.training.run import Run


def residents_of(run: Run, state: State) -> dict[str, Any]:
    """Return what each process of a cell has of its own: in a message its name stands for it."""
    return {"executor": run.alone, "trainer": run.trainer, "state": state}


def news_of(run: Run, state: State) -> Packed:
    """Return what workers must know of a state, and the FLOPs of the steps that have been counted."""
    senders = {component.name for component in run.method.using("broadcast")}
    server = {name: tree if name in senders else {} for name, tree in state.server.items()}
    return pack((state.round, state.params, state.buffers, server, state.lasting, run.meter.flops_of_step))


class Replica:
    """A run that knows of its driver's state what `news_of` tells, and holds no rows: those come with the calls."""

    def __init__(self, run: Run) -> None:
        run.trainer.pool = None  # what a call asks for is made here
        run.state.rows = {}
        self.run, self._known = run, run.meter.flops_of_step

    @property
    def residents(self) -> dict[str, Any]:
        """What its name stands for in a call."""
        return residents_of(self.run, self.run.state)

    def hear(self, news: Any) -> None:
        """Take over the driver's state; its trees lie where the news are."""
        state = self.run.state
        state.round, state.params, state.buffers, state.server, state.lasting, flops = news
        state.refresh_first_row()
        self._known = self._known | flops

    def make(self, call: tuple[Callable[..., Any], Sequence[Any]]) -> Packed:
        """Make a call; return its reply, ready to send."""
        function, arguments = call
        meter = self.run.meter
        meter.take_over(Meter(flops_of_step=dict(self._known)))

        def made() -> Any:
            try:
                return function(*arguments)
            finally:
                self.run.note_peak()

        reply = reply_of(made, meter)
        self._known = self._known | meter.flops_of_step
        return pack(reply)
