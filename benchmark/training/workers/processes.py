"""Workers forked from a cell's driver, which exchange weights and results with it through shared memory."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Any

from fedspan.benchmark.training.workers.messages import Packed
from fedspan.benchmark.training.workers.regions import MessageExtent, Region
from fedspan.benchmark.training.workers.replica import Replica
from fedspan.benchmark.training.workers.replies import Reply
from fedspan.benchmark.training.workers.transport import SLOTS

if TYPE_CHECKING:
    from fedspan.benchmark.training.run import Run


class Lifeline:
    """A pipe to which only the driver can write; its closing tells the forked processes that the driver has gone.

    They are not started by multiprocessing, which would wait for them when the driver ends.
    """

    def __init__(self) -> None:
        self._end, self._driver = os.pipe()

    def forked(self, work: Callable[[], None]) -> int:
        """Return the PID of a fork of this process that runs `work` and exits, at the latest when this process ends."""
        pid = os.fork()
        if pid == 0:
            try:
                os.close(self._driver)
                threading.Thread(target=self._end_with_driver, daemon=True).start()
                work()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        return pid

    def _end_with_driver(self) -> None:
        os.read(self._end, 1)
        os._exit(1)

    def close(self) -> None:
        """End all forked processes."""
        os.close(self._end)
        os.close(self._driver)


class Process:
    """A worker that starts as a copy of the driver, with the same code, data and net."""

    ready = True

    def __init__(self, run: Run, state_region: Region, lifeline: Lifeline) -> None:
        self.calls: list[int] = []
        self._given = 0
        self._inbox, self._outbox = ([Region() for _ in range(SLOTS)] for _ in range(2))
        self.line, its = Pipe()
        with its:
            self.pid = lifeline.forked(lambda: serve(run, its, state_region, self._inbox, self._outbox))

    def receive_state(self, published: MessageExtent) -> None:
        """Make it read the published message."""
        self._say("receive_state", 0, published)

    def give(self, number: int, call: Packed) -> None:
        """Queue a call behind its existing ones."""
        slot = self._given % SLOTS
        self._given += 1
        self.calls.append(number)
        self._say("do", slot, self._inbox[slot].put(call))

    def _say(self, *message: Any) -> None:
        with contextlib.suppress(OSError):  # its death is noticed when the driver listens to it
            self.line.send(message)

    def answers(self, lent: int | None) -> Sequence[tuple[int, Reply]]:
        """Return number and reply of its oldest call, which is finished; raise `EOFError` if it has died."""
        try:
            slot, extent = self.line.recv()
        except OSError as error:
            raise EOFError from error
        number = self.calls.pop(0)
        return [(number, self._outbox[slot].get(extent, copy=number != lent))]

    def close(self) -> None:
        """End it at once, even if busy."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # already reaped, where SIGCHLD is ignored
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self.line.close()
        for region in (*self._inbox, *self._outbox):
            region.close()


class Processes:
    """The workers forked from the process of a run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._state_region, self._lifeline = Region(), Lifeline()

    def start(self) -> Process:
        """Fork a worker; raise `OSError` if there is no memory, or too many processes or open files."""
        return Process(self.run, self._state_region, self._lifeline)

    def publish(self, state_message: Packed) -> MessageExtent:
        """Replace the previous message."""
        return self._state_region.put(state_message)

    def listen(self, workers: Iterable[Process], wait: bool) -> Iterator[Process]:
        """Yield the workers that have answered or died; with `wait`, block until there is one."""
        lines: dict[Any, Process] = {worker.line: worker for worker in workers}
        for line in connection.wait(list(lines), None if wait else 0):
            yield lines[line]

    def close(self) -> None:
        """Free the memory and end all workers."""
        self._state_region.close()
        self._lifeline.close()


def serve(run: Run, line: Connection, state_region: Region, inbox: Sequence[Region], outbox: Sequence[Region]) -> None:
    """Serve the driver's calls forever."""
    # The driver decides when to end, after saving its cell; clusters send these signals to all processes of a job.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    replica = Replica(run)
    while True:
        kind, slot, extent = line.recv()
        if kind == "receive_state":
            replica.receive_state(state_region.get(extent))
        else:
            call = inbox[slot].get(extent, replica.residents)
            line.send((slot, outbox[slot].put(replica.make(call))))
