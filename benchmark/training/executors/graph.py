"""CUDA graphs: a client's step is recorded once per batch size and replayed, several clients side by side."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.sgd import SGD
from fedspan.benchmark.training.executors.loop import Loop, Trained, Visits
from fedspan.benchmark.training.local import Finished, LocalTrainer, Position, Visit
from fedspan.benchmark.training.state import State
from fedspan.benchmark.tree import clone

log = logging.getLogger("fedspan")

EAGER = 2  # steps of a kind before it is recorded: they fill caches, and count FLOPs
LANES = 16  # clients side by side at most
GAIN = 1.05  # by which a round with twice the lanes must be faster to keep them
SPARE = 0.9  # of the free memory, what lanes may take

Replay = Callable[[], None]


class Cuda:
    """What lanes ask of a device; tests put a recorder for CPU in its place."""

    def __init__(self, device: torch.device) -> None:
        if device.type != "cuda":
            raise UserError(f"executor=graph records CUDA graphs, and this is device={device}; use executor=loop")
        self.device = device

    def queue(self) -> Any:
        """Return a queue of work of its own: a stream, and the memory in which its recordings work."""
        return torch.cuda.Stream(self.device), torch.cuda.graph_pool_handle()

    def on(self, queue: Any) -> AbstractContextManager[Any]:
        """Return the context in which work goes to `queue`."""
        return torch.cuda.stream(queue[0])

    def begin(self, queue: Any) -> None:
        """Let `queue` wait for what was asked for outside."""
        queue[0].wait_stream(torch.cuda.current_stream(self.device))

    def wait(self) -> None:
        """Wait for all work."""
        torch.cuda.synchronize(self.device)

    def record(self, work: Callable[[], object], queue: Any) -> Replay:
        """Record what `work` asks for, without doing it; return what does it."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=queue[1], stream=queue[0]):
            work()
        return graph.replay

    def memory(self) -> tuple[int, int]:
        """Return the bytes of device memory that this process has reserved, and the free ones."""
        free, _ = torch.cuda.mem_get_info(self.device)
        return torch.cuda.memory_reserved(self.device), free

    def release(self) -> None:
        """Give unused memory back."""
        torch.cuda.empty_cache()


@dataclass
class Recording:
    """One kind of step: its input batch in a fixed place, and how to do it again."""

    x: Tensor
    y: Tensor
    seen: int = 0
    replay: Replay | None = None
    possible: bool = True


class ReplayLane:
    """One net in which clients train one after another by replaying recorded steps.

    All that a step reads stays in its place: a visit is copied there.
    """

    def __init__(self, trainer: LocalTrainer, machine: Cuda) -> None:
        self.trainer, self.machine, self.queue = trainer, machine, machine.queue()
        self.recordings: dict[tuple[int, int], Recording] = {}
        self.optimisers: dict[int, SGD] = {}
        device = trainer.data.device
        exact = torch.float64 if device.type == "cpu" else torch.float32  # as torch's fused SGD wants it
        self.lr = torch.zeros((), dtype=exact, device=device)
        self.round = torch.zeros((), dtype=trainer.protocol.dtype, device=device)
        self.position = Position(*(torch.zeros((), dtype=torch.long, device=device) for _ in range(3)))
        self.total = torch.zeros((), dtype=torch.float64, device=device)  # loss over images
        self.place: Visit | None = None

    def steps(self, state: State, client: int, most: int | None) -> Iterator[None]:
        """Ask for the steps of one client, one at a time, and at `most` so many."""
        trainer = self.trainer
        self.client, self.visit, self.taken, self.images = client, trainer.visit(state, client, most), 0, 0
        self._settle_in(self.visit)
        for leaf in trainer.params.values():
            leaf.grad = None
        trainer.net.train()
        for phase, epochs, moved in trainer.phases():
            if phase not in self.optimisers:
                self.optimisers[phase] = trainer.optimiser(moved, self.lr)
            for leaf in self.optimisers[phase].buffers:
                leaf.zero_()
            for epoch in epochs:
                for x, y in trainer.data.epoch(client, state.round, epoch, most):
                    with trainer.meter.step("train", f"{len(y)} phase {phase}"):
                        self._step(phase, moved, x, y)
                    self.taken, self.images = self.taken + 1, self.images + len(y)
                    yield

    def finish(self, state: State) -> Finished:
        """Wait for the client whose steps were asked for; return what it hands back."""
        visit = self.visit
        if self.trainer.method.carries and self.place is not None:
            visit = replace(visit, states={name: clone(tree) for name, tree in self.place.states.items()})
        return self.trainer.finish(
            state, self.client, visit, steps=self.taken, images=self.images, total=float(self.total)
        )

    def _settle_in(self, visit: Visit) -> None:
        """Copy a visit to where recorded steps read it."""
        if self.place is None:
            states, broadcast = (
                {name: clone(tree) for name, tree in trees.items()} for trees in (visit.states, visit.broadcast)
            )
            self.place = Visit(
                start=clone(visit.start),
                start_buffers=clone(visit.start_buffers),
                counts=visit.counts.clone(),
                round=self.round,
                lr=self.lr,
                broadcast=broadcast,
                states=states,
                position=self.position,
            )
        else:
            torch._foreach_copy_(_leaves(self.place), _leaves(visit))
        self.lr.fill_(visit.lr)
        self.round.fill_(visit.round)
        for name, value in vars(visit.position).items():
            getattr(self.position, name).fill_(value)
        self.total.zero_()

    def _step(self, phase: int, moved: list[str], x: Tensor, y: Tensor) -> None:
        kind = phase, len(y)
        if kind not in self.recordings:
            self.recordings[kind] = Recording(torch.empty_like(x), torch.empty_like(y))
        recording = self.recordings[kind]
        recording.x.copy_(x)
        recording.y.copy_(y)
        recording.seen += 1

        def work() -> None:
            assert self.place is not None
            loss = self.trainer.step(moved, self.optimisers[phase], recording.x, recording.y, self.place)
            self.total.add_(loss.double() * len(recording.y))

        if recording.seen > EAGER and recording.possible and recording.replay is None:
            try:
                recording.replay = self.machine.record(work, self.queue)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                recording.possible = False
                log.warning("a step cannot be recorded and runs at the speed of loop: %s", str(error).split("\n")[0])
        (recording.replay or work)()


class Graph(Loop):
    """Trains clients side by side in lanes, each a recorded step that is replayed on a stream of its own.

    Rounds with 1, 2, 4, ... lanes are timed, as far as memory goes, until more are not faster. Which client goes to
    which lane, and in what order their results are added, does not depend on time.
    """

    name = "graph"
    machine: ClassVar[type[Cuda]] = Cuda

    def __init__(self, trainer: LocalTrainer) -> None:
        super().__init__(trainer)
        self.device = self.machine(trainer.data.device)
        self.lanes: list[ReplayLane] = []
        self.width = Width()

    def each(self, state: State, visits: Visits) -> Iterator[Trained]:
        done: dict[int, Trained] = {}
        while len(done) < len(visits.clients):
            todo = sorted(set(visits.clients) - set(done), key=lambda client: (-self.trainer.data.size(client), client))
            try:
                self._round(state, todo, visits, done)
            except torch.OutOfMemoryError:
                if self.width.now == 1:
                    raise
                self.width.halve()
                log.warning("out of memory on %s: going on with %d lanes", self.trainer.data.device, self.width.now)
                self._narrow()
        for client in sorted(done):
            yield done.pop(client)

    def together(self, clients: int, workers: int) -> int:
        return min(LANES, -(-clients // workers))

    def _round(self, state: State, todo: list[int], visits: Visits, done: dict[int, Trained]) -> None:
        """Train the clients `todo`, the largest first; a lane that is free takes the next one."""
        before, start = self.device.memory()[0], time.perf_counter()
        waiting, images = iter(todo), 0
        added = range(len(self.lanes), self.width.now)
        self.lanes += [self._lane(number) for number in added]
        busy = {
            lane: self._begin(lane, state, client, visits) for lane, client in zip(self.lanes, waiting, strict=False)
        }
        while busy:
            for lane, steps in list(busy.items()):
                with self.device.on(lane.queue):
                    if next(steps, self) is not self:  # steps are asked for and not waited for
                        continue
                    finished = lane.finish(state)
                    kept = lane.trainer.copy() if lane.client in visits.keep else None
                done[lane.client] = finished, kept
                images += finished.images
                visits.tick()
                client = next(waiting, None)
                if client is None:
                    del busy[lane]
                else:
                    busy[lane] = self._begin(lane, state, client, visits)
        self.device.wait()
        taken, free = self.device.memory()
        self.width.learn(images / (time.perf_counter() - start), len(todo), len(added), taken - before, free)
        self._narrow()

    def _begin(self, lane: ReplayLane, state: State, client: int, visits: Visits) -> Iterator[None]:
        self.device.begin(lane.queue)
        lane.trainer.lost = visits.lost
        return lane.steps(state, client, visits.turn(client).steps)

    def _narrow(self) -> None:
        """Give up the lanes beyond the width."""
        if len(self.lanes) > self.width.now:
            self.device.wait()  # what they were asked for still reads their memory
            del self.lanes[self.width.now :]
            self.device.release()

    def _lane(self, number: int) -> ReplayLane:
        """Return a lane; the first has the net of the run, the others have copies."""
        one = self.trainer
        if number:
            one = LocalTrainer(copy.deepcopy(one.net), one.method, one.paths, data=one.data, meter=one.meter)
        return ReplayLane(one, self.device)


class Width:
    """How many lanes: doubled while that pays and memory lasts."""

    def __init__(self, most: int = LANES) -> None:
        self.now, self.most, self.lane_bytes = 1, most, 0
        self.best = 0.0  # images per second with half the lanes
        self.settled = False

    def learn(self, rate: float, clients: int, added: int, grown: int, free: int) -> None:
        """Learn from a round of `clients`: images per second, lanes that are new, bytes that it took, bytes left.

        A round with new lanes records their steps; the next one is what counts.
        """
        if added:
            self.lane_bytes = max(self.lane_bytes, grown // added)
        if added or self.settled:
            return
        if rate < GAIN * self.best:
            self.now //= 2
            self.settled = True
        elif 2 * self.now > min(self.most, clients) or self.now * self.lane_bytes > SPARE * free:
            self.settled = True
        else:
            self.now, self.best = 2 * self.now, rate

    def halve(self) -> None:
        """Do with half the lanes from now on."""
        self.now //= 2
        self.settled = True


def _leaves(visit: Visit) -> list[Tensor]:
    """Return the tensors of a visit, always in the same order."""
    trees = [visit.start, visit.start_buffers]
    trees += [states[name] for states in (visit.broadcast, visit.states) for name in sorted(states)]
    return [visit.counts, *(tree[path] for tree in trees for path in sorted(tree))]
