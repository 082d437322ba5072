"""Workers: processes forked from the driver of a cell, which share weights and results with it through memory."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from fedspan.benchmark.training.meter import Meter
from fedspan.benchmark.training.state import State
from fedspan.benchmark.training.workers.messages import Packed, pack
from fedspan.benchmark.training.workers.regions import Letter, Region
from fedspan.benchmark.training.workers.reports import report_of

if TYPE_CHECKING:
    from fedspan.benchmark.training.run import Run

SLOTS = 2  # calls that a worker has at a time: the one that it makes, and the next


def residents_of(run: Run, state: State) -> dict[str, Any]:
    """Return what each process of a cell has of its own: in a message its name stands for it."""
    return {"trainer": run.trainer, "state": state}


class Worker:
    """A worker as its driver sees it. It begins as a copy of the driver: the same code, data and net."""

    def __init__(self, run: Run, news: Region) -> None:
        self.calls: list[int] = []  # the numbers of those that it has, in order
        self._given = 0
        self._inbox, self._outbox = ([Region() for _ in range(SLOTS)] for _ in range(2))
        context = multiprocessing.get_context("fork")
        self.line, its = context.Pipe()
        served = (run, its, news, self._inbox, self._outbox)
        self._process = context.Process(target=serve, args=served, name="fedspan-worker", daemon=True)
        self._process.start()
        its.close()

    @property
    def pid(self) -> int | None:
        """The number of the process."""
        return self._process.pid

    def give(self, number: int, call: Packed) -> None:
        """Give it a call to make, after those that it has."""
        slot = self._given % SLOTS
        self._given += 1
        self.calls.append(number)
        self._say("do", slot, self._inbox[slot].put(call))

    def hear(self, letter: Letter) -> None:
        """Have it read the news."""
        self._say("hear", 0, letter)

    def _say(self, *message: Any) -> None:
        with contextlib.suppress(OSError):  # that it has died shows when it is listened to
            self.line.send(message)

    def done(self) -> tuple[int, Any] | None:
        """Return the number and the report of its oldest call, which it has made; None if it has died."""
        try:
            slot, letter = self.line.recv()
        except (EOFError, OSError):
            return None
        return self.calls.pop(0), self._outbox[slot].get(letter, copy=True)

    def close(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.join()
        self._process.close()
        self.line.close()
        for region in (*self._inbox, *self._outbox):
            region.close()


def listen(workers: Sequence[Worker], wait: bool) -> Iterator[Worker]:
    """Yield the workers that have something to say, or have died; `wait` until there is one, or not."""
    lines: dict[Any, Worker] = {worker.line: worker for worker in workers}
    for line in connection.wait(list(lines), None if wait else 0):
        yield lines[line]


def serve(run: Run, line: Connection, news: Region, inbox: Sequence[Region], outbox: Sequence[Region]) -> None:
    """Make calls until the driver has gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the driver decides: it saves its cell first
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    run.trainer.pool = None  # what a call asks for is made here
    run.state.rows = {}
    known = run.meter.flops_of_step
    with contextlib.suppress(EOFError, OSError):
        while True:
            kind, slot, letter = line.recv()
            if kind == "hear":
                known = known | _take_over(run.state, news.get(letter))
                continue
            run.meter = run.trainer.meter = Meter(flops_of_step=dict(known))
            function, arguments = inbox[slot].get(letter, residents_of(run, run.state))
            report = report_of(partial(function, *arguments), run.meter)
            known = known | run.meter.flops_of_step
            line.send((slot, outbox[slot].put(pack(report))))


def news_of(run: Run, state: State) -> Packed:
    """Return what workers must know of a state, and the FLOPs of the steps that have been counted."""
    senders = {component.name for component in run.method.using("broadcast")}
    server = {name: tree if name in senders else {} for name, tree in state.server.items()}
    return pack((state.round, state.params, state.buffers, server, state.lasting, run.meter.flops_of_step))


def _take_over(state: State, news: Any) -> dict[str, int]:
    """Give a worker's state what `news_of` told; return the FLOPs. The trees lie where the news are."""
    state.round, state.params, state.buffers, state.server, state.lasting, flops = news
    state.refresh_first_row()
    counted: dict[str, int] = flops
    return counted


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(0)
