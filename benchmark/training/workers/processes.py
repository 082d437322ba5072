"""Workers as processes of this machine, which share weights and results through memory."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection, reduction
from multiprocessing.connection import Connection
from typing import Any

from fedspan.benchmark.training.workers.crew import SLOTS, Said
from fedspan.benchmark.training.workers.messages import Packed
from fedspan.benchmark.training.workers.regions import Region


@dataclass
class Process:
    """One worker as its driver sees it: the process, the line to it, and a region for each slot and direction."""

    process: Any
    line: Connection
    inbox: Sequence[Region]
    outbox: Sequence[Region]
    given: int = 0
    slots: list[int] = field(default_factory=list)  # of the calls that it has, in order

    def send(self, *message: Any) -> None:
        """Send a short message; that the worker has died shows when it is listened to."""
        with contextlib.suppress(OSError):
            self.line.send_bytes(pickle.dumps(message))

    def close(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.line.close()
        for region in (*self.inbox, *self.outbox):
            region.close()


class Processes:
    """Workers of this machine.

    They come from a server process that has imported all and computed nothing, so that a new one is there in a
    moment, and forking is safe whatever this process has done. They end with this process, however it ends.
    """

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([f"{__package__}.imported"])
        self.news = Region()
        self.workers: list[Process] = []

    def start(self) -> Process:
        """Start a worker; it says `ready` when it has been engaged for a cell and has prepared it."""
        inbox, outbox = ([Region() for _ in range(SLOTS)] for _ in range(2))
        mine, its = self.context.Pipe()
        regions = (_Handles([region.handle for region in part]) for part in ([self.news], inbox, outbox))
        process = self.context.Process(target=serve, args=(its, *regions), daemon=True)
        process.start()
        its.close()
        worker = Process(process, mine, inbox, outbox)
        self.workers.append(worker)
        return worker

    def engage(self, worker: Process, setup: Any) -> None:
        """Have a worker prepare a cell."""
        worker.send("engage", setup)

    def tell(self, news: Packed) -> Any:
        """Put news where all workers see them; return what `pass_on` takes. No worker may be at work."""
        news.write(self.news.of(news.size))
        return news.head, news.size

    def pass_on(self, worker: Process, told: Any) -> None:
        """Have a worker hear the news."""
        worker.send("hear", *told)

    def give(self, worker: Process, call: Packed) -> None:
        """Give a worker a call to make, after those that it has."""
        slot = worker.given % SLOTS
        worker.given += 1
        worker.slots.append(slot)
        call.write(worker.inbox[slot].of(call.size))
        worker.send("do", slot, call.head, call.size)

    def listen(self, wait: bool) -> Iterator[tuple[Process, Said]]:
        """Yield what workers have to say, after waiting until one has, or not."""
        lines = {worker.line: worker for worker in self.workers}
        for line in connection.wait(list(lines), None if wait else 0):
            worker = lines[line]  # type: ignore[index]
            try:
                kind, *rest = pickle.loads(worker.line.recv_bytes())  # noqa: S301 - from a process started here
            except (EOFError, OSError):
                worker.process.join()
                self.dismiss(worker)
                yield worker, ("died", f"exit status {worker.process.exitcode}; is there enough memory?")
                continue
            if kind == "done":
                head, size = rest
                yield worker, ("done", (head, worker.outbox[worker.slots.pop(0)].of(size)))
            else:
                yield worker, (kind, rest[0])

    def dismiss(self, worker: Process) -> None:
        """End a worker."""
        self.workers.remove(worker)
        worker.close()

    def close(self) -> None:
        """End all workers."""
        for worker in list(self.workers):
            self.dismiss(worker)


class _Handles:
    """File descriptors on their way to a new process."""

    def __init__(self, handles: Sequence[int]) -> None:
        self.handles = handles

    def __reduce__(self) -> Any:
        return _regions, ([reduction.DupFd(handle) for handle in self.handles],)


def _regions(handles: Sequence[Any]) -> list[Region]:
    return [Region(handle.detach()) for handle in handles]


def serve(line: Connection, news: Sequence[Region], inbox: Sequence[Region], outbox: Sequence[Region]) -> None:
    """Be a worker until the driver has gone."""
    from fedspan.benchmark.training.workers.resident import Resident, prepared

    for number in (signal.SIGINT, signal.SIGTERM):  # the driver decides: it saves its cell first
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    resident: Resident | None = None

    with contextlib.suppress(EOFError, OSError):
        while True:
            kind, *rest = pickle.loads(line.recv_bytes())  # noqa: S301 - from the driver, which started this process
            if kind == "engage":
                resident, said = prepared(rest[0])
                line.send_bytes(pickle.dumps(said))
            elif resident is not None and kind == "hear":
                head, size = rest
                resident.hear(head, news[0].of(size))
            elif resident is not None:
                slot, head, size = rest
                report = resident.do(head, inbox[slot].of(size))
                report.write(outbox[slot].of(report.size))
                line.send_bytes(pickle.dumps(("done", report.head, report.size)))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(0)
