"""Workers as actors of a Ray cluster, which places them: one for each GPU, or on free cores."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.spec.settings import How
from fedspan.benchmark.training.workers.cluster import connect
from fedspan.benchmark.training.workers.crew import Said
from fedspan.benchmark.training.workers.messages import Packed
from fedspan.benchmark.training.workers.resident import Resident, Setup, prepared


class Desk:
    """The worker itself, in a process of Ray's. Memory travels as NumPy arrays, which Ray's object store takes."""

    def __init__(self) -> None:
        self.resident: Resident | None = None

    def engage(self, setup: Setup) -> Said:
        """Prepare a cell."""
        self.resident, said = prepared(setup)
        return said

    def hear(self, head: bytes, array: Any) -> Said:
        """Take over the driver's state."""
        assert self.resident is not None
        self.resident.hear(head, _owned(array))
        return "heard", None

    def do(self, head: bytes, array: Any) -> Said:
        """Make a call."""
        assert self.resident is not None
        report = self.resident.do(head, _owned(array))
        return "done", (report.head, report.memory().numpy())


def _owned(array: Any) -> Tensor:
    """Return a copy with the alignment of torch's own memory: Ray's arrays are read-only."""
    memory = torch.empty(len(array), dtype=torch.uint8)
    memory.numpy()[:] = array
    return memory


@dataclass
class Actor:
    """One worker as its driver sees it: what it was asked for and has not answered, in order."""

    handle: Any
    asked: deque[Any] = field(default_factory=deque)


class Actors:
    """Workers of a cluster. A worker takes `threads` cores, and on CUDA a GPU or the share `gpus` of one."""

    def __init__(self, how: How) -> None:
        connect(how)
        import ray

        self.ray = ray
        gpus = how.gpus if how.gpus is not None else float(how.device.startswith("cuda"))
        self.desk = ray.remote(num_cpus=how.threads, num_gpus=gpus)(Desk)
        self.workers: list[Actor] = []

    def start(self) -> Actor:
        """Start a worker, when the cluster has room for it."""
        worker = Actor(self.desk.remote())
        self.workers.append(worker)
        return worker

    def engage(self, worker: Actor, setup: Setup) -> None:
        """Have a worker prepare a cell."""
        worker.asked.append(worker.handle.engage.remote(setup))

    def tell(self, news: Packed) -> Any:
        """Put news into the object store, from where each node fetches it once."""
        self._check(news.size, "the weights of the model and what the method broadcasts")
        return news.head, self.ray.put(news.memory().numpy())

    def pass_on(self, worker: Actor, told: Any) -> None:
        """Have a worker hear the news."""
        worker.asked.append(worker.handle.hear.remote(*told))

    def give(self, worker: Actor, call: Packed) -> None:
        """Give a worker a call to make."""
        self._check(call.size, "a client's row, what the method has it keep between rounds,")
        worker.asked.append(worker.handle.do.remote(call.head, call.memory().numpy()))

    def _check(self, size: int, what: str) -> None:
        room = min((node["Resources"].get("object_store_memory", 0) for node in self._nodes()), default=0)
        if size > room > 0:
            raise UserError(
                f"{what} takes {size / 2**20:.0f} MiB, and a node's object store has {room / 2**20:.0f} MiB; start Ray "
                "with a larger --object-store-memory, or run without launcher=ray"
            )

    def _nodes(self) -> list[Any]:
        return [node for node in self.ray.nodes() if node["Alive"]]

    def listen(self, wait: bool) -> Iterator[tuple[Actor, Said]]:
        """Yield what workers have to say, after waiting until one has, or not."""
        first = {worker.asked[0]: worker for worker in self.workers if worker.asked}
        found, _ = self.ray.wait(list(first), num_returns=1, timeout=None if wait else 0) if first else ([], [])
        for answer in found:
            worker = first[answer]
            worker.asked.popleft()
            try:
                kind, said = self.ray.get(answer)
            except self.ray.exceptions.RayTaskError as error:
                raise UserError(f"a worker failed: {str(error.cause).splitlines()[0]}") from error
            except self.ray.exceptions.RayError as error:
                self.dismiss(worker)
                yield worker, ("died", str(error).splitlines()[0])
                continue
            if kind == "done":
                head, array = said
                yield worker, (kind, (head, _owned(array)))
            elif kind != "heard":
                yield worker, (kind, said)

    def dismiss(self, worker: Actor) -> None:
        """End a worker."""
        self.workers.remove(worker)
        with contextlib.suppress(Exception):  # the cluster may be gone
            self.ray.kill(worker.handle)

    def close(self) -> None:
        """End all workers."""
        for worker in list(self.workers):
            self.dismiss(worker)
