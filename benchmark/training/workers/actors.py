"""Workers on a Ray cluster: actors, each of which prepares its own copy of the cell."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import platform
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedspan.benchmark import registry
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.records.provenance import difference, origin
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.training.process import set_up_process
from fedspan.benchmark.training.run import Run
from fedspan.benchmark.training.workers.messages import Packed, unpack
from fedspan.benchmark.training.workers.replica import Replica
from fedspan.benchmark.training.workers.replies import Reply

log = logging.getLogger("fedspan")

FAILED_STARTS = 3  # consecutive workers that die before they are ready, after which the cell fails
PATIENCE = 60.0  # seconds without a ready worker, after which the user is warned

Identity = tuple[str, dict[str, Any]]  # a worker's host name, and everything that its bits depend on


@dataclass(frozen=True)
class Setup:
    """Inputs from which an actor prepares the cell; its pickle can be read only after plugin files are loaded.

    `folder` is the driver's working directory, `room` the size in bytes of the cluster's smallest object store.
    """

    how: How
    cell: bytes
    folder: Path
    room: int

    def prepare(self) -> Run:
        """Return the run of the cell in this process."""
        with contextlib.suppress(OSError):  # relative paths work if machines share the driver's folder
            os.chdir(self.folder)
        registry.load_files(self.how.plugins)
        set_up_process(self.how)
        return Run(pickle.loads(self.cell), self.how)  # noqa: S301 - made by the driver


def identity_of(run: Run) -> Identity:
    """Return the host name, and everything that the bits of a run in this process depend on."""
    return platform.node(), {**origin(run.cell, run.how, run.device, run.numerics), **run.digests}


class RemoteWorker:
    """The worker's side of an actor. Tensors travel as one NumPy array, whose bytes Ray copies unchanged."""

    def prepare(self, setup: Setup) -> Identity:
        """Prepare the cell; raise `UserError` if that fails here."""
        try:
            run = setup.prepare()
        except Exception as error:
            said = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            raise UserError(f"a worker on {platform.node()} cannot prepare the cell: {said}") from None
        self.replica, self.room = Replica(run), setup.room
        return identity_of(run)

    def receive_state(self, head: bytes, array: Any) -> None:
        """Take over the driver's state."""
        self.replica.receive_state(unpack(head, _owned(array)))

    def make(self, head: bytes, array: Any) -> tuple[bytes, Any]:
        """Run a call; return its packed reply."""
        reply = self.replica.make(unpack(head, _owned(array), self.replica.residents))
        return reply.head, fitting(reply, self.room, "the results of clients").memory().numpy()


def fitting(message: Packed, room: int, what: str) -> Packed:
    """Return `message` if it fits into an object store of `room` bytes; raise `UserError` otherwise."""
    if message.size > room:
        raise UserError(
            f"{what} take {message.size / 2**20:.0f} MiB, the smallest object store of the Ray cluster has "
            f"{room / 2**20:.0f} MiB; start Ray with a larger --object-store-memory, or run without launcher=ray"
        )
    return message


def _owned(array: Any) -> Tensor:
    """Return a copy in memory allocated by torch: Ray's is read-only and has another alignment."""
    memory = torch.empty(len(array), dtype=torch.uint8)
    memory.numpy()[:] = array
    return memory


class Actor:
    """A worker on a machine of the cluster, from the driver's point of view."""

    def __init__(self, transport: Actors) -> None:
        self.calls: list[int] = []
        self.ready = False
        self._transport, self._handle = transport, transport.remote_worker.remote()
        self.asked: deque[futures.Future[Any]] = deque()  # unanswered requests, in order
        self._ask(self._handle.prepare, transport.setup)

    def receive_state(self, published: Sequence[Any]) -> None:
        """Make it fetch the published message."""
        self._ask(self._handle.receive_state, *published)

    def give(self, number: int, call: Packed) -> None:
        """Queue a call behind its existing ones."""
        array = fitting(call, self._transport.setup.room, "what clients keep between rounds").memory().numpy()
        self.calls.append(number)
        self._ask(self._handle.make, call.head, array)

    def _ask(self, method: Any, *arguments: Any) -> None:
        self.asked.append(method.remote(*arguments).future())

    def answers(self, lent: int | None) -> Sequence[tuple[int, Reply]]:
        """Return number and reply of its oldest call, or nothing if it has answered another request.

        Raises `EOFError` if it has died, `UserError` if it has failed or would compute different bits.
        """
        said = self._transport.answer(self.asked.popleft(), self.ready)
        if not self.ready:
            self._transport.admit(said)
            self.ready = True
        elif said is not None:
            head, array = said
            number = self.calls.pop(0)
            return [(number, unpack(head, _owned(array), copy=number != lent, gpu=self._transport.device))]
        return []

    def close(self) -> None:
        """End it at once, even if busy."""
        with contextlib.suppress(Exception):  # the cluster may be gone
            self._transport.ray.kill(self._handle)


class Actors:
    """The workers of a run on a Ray cluster, which places them where cores and GPUs are free."""

    def __init__(self, run: Run) -> None:
        import ray

        self.ray, self.failed_starts, self._warned = ray, 0, False
        room = min(int(node["Resources"].get("object_store_memory", 0)) for node in ray.nodes() if node["Alive"])
        how, self.device = run.how, run.device
        gpus = how.gpus or float(self.device.type != "cpu")
        theirs = replace(how, device=self.device.type)  # Ray shows each worker only its own GPU
        self.setup = Setup(theirs, pickle.dumps(run.cell), folder=Path.cwd(), room=room)
        self.remote_worker = ray.remote(num_cpus=how.threads, num_gpus=gpus)(RemoteWorker)
        self._needs = "GPUs" if gpus else "cores"
        _, self._origin = identity_of(run)

    def start(self) -> Actor:
        """Return a worker, which is ready once the cluster has placed it and it has prepared the cell."""
        return Actor(self)

    def publish(self, state_message: Packed) -> Sequence[Any]:
        """Put the message into the object store, from which each machine fetches it once."""
        fitting(state_message, self.setup.room, "the data sent to clients")
        return state_message.head, self.ray.put(state_message.memory().numpy())

    def listen(self, workers: Iterable[Actor], wait: bool) -> Iterator[Actor]:
        """Yield the workers that have answered or died; with `wait`, block at most `PATIENCE` seconds for one."""
        asked = {worker.asked[0]: worker for worker in workers if worker.asked}
        # Ray's own wait loses exceptions raised by signal handlers
        found, _ = futures.wait(asked, timeout=PATIENCE if wait else 0, return_when=futures.FIRST_COMPLETED)
        if wait and not (found or self._warned or any(worker.ready for worker in asked.values())):
            self._warned = True
            log.warning("no worker is ready yet: does the Ray cluster have %s free?", self._needs)
        for answer in found:
            yield asked[answer]

    def answer(self, asked: futures.Future[Any], ready: bool) -> Any:
        """Return a worker's answer; raise `EOFError` if it has died, `UserError` if it failed."""
        errors = self.ray.exceptions
        try:
            return asked.result()
        except errors.RayTaskError as error:
            cause = error.cause
            raise UserError(str(cause) if isinstance(cause, UserError) else f"a worker failed: {cause!r}") from error
        except errors.RayError as error:
            self.failed_starts += not ready
            if self.failed_starts >= FAILED_STARTS:
                raise UserError(f"{FAILED_STARTS} workers ended before they were ready: {_reason(error)}") from error
            raise EOFError from error

    def admit(self, identity: Identity) -> None:
        """Accept a worker; raise `UserError` if it would compute different bits."""
        host, theirs = identity
        if said := difference(self._origin, theirs):
            raise UserError(f"the worker on {host} would compute different bits: its {said}")
        self.failed_starts = 0

    def close(self) -> None:
        """Do nothing: others may be using the cluster."""


def _reason(error: BaseException) -> str:
    return str(error).strip().splitlines()[-1][:300]  # Ray's first lines only say where it happened
