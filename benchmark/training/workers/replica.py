"""A worker's replica of the cell, on which it runs the driver's calls."""

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
    """Return the objects that every process of a cell has its own copy of; messages refer to them by name."""
    return {"executor": run.local_executor, "trainer": run.trainer, "state": state}


def state_update(run: Run, state: State) -> Packed:
    """Return the parts of a state that workers need, and the FLOPs of the steps counted so far."""
    senders = {component.name for component in run.method.using("broadcast")}
    server = {name: tree if name in senders else {} for name, tree in state.server.items()}
    return pack((state.round, state.params, state.buffers, server, state.lasting, run.meter.flops_of_step))


class Replica:
    """A run with the parts of the driver's state from `state_update`, and no rows, which are sent with the calls."""

    def __init__(self, run: Run) -> None:
        run.trainer.pool = None  # nested calls run in this process
        run.state.rows = {}
        self.run, self._known = run, run.meter.flops_of_step

    @property
    def residents(self) -> dict[str, Any]:
        """The objects that calls refer to by name."""
        return residents_of(self.run, self.run.state)

    def receive_state(self, state_message: Any) -> None:
        """Take over the driver's state; its trees are views of the message's memory."""
        state = self.run.state
        state.round, state.params, state.buffers, state.server, state.lasting, flops = state_message
        state.refresh_first_row()
        self._known = self._known | flops

    def make(self, call: tuple[Callable[..., Any], Sequence[Any]]) -> Packed:
        """Run a call; return its reply, ready to send."""
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
