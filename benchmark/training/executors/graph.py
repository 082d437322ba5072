"""CUDA graphs: each client step is recorded once per batch size and replayed, for several clients in parallel."""

from __future__ import annotations

import copy
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedspan.benchmark.errors import Diverged, UserError
from fedspan.benchmark.sgd import SGD
from fedspan.benchmark.training.executors.loop import Loop, RoundClients, Trained
from fedspan.benchmark.training.local import ClientResult, LocalTrainer, Position, Visit
from fedspan.benchmark.training.process import ran_out_of_memory
from fedspan.benchmark.training.state import State
from fedspan.benchmark.tree import clone

log = logging.getLogger("fedspan")

EAGER = 2  # steps of each kind before it is recorded: they fill caches and count FLOPs
LANES = 16  # maximum number of clients in parallel
MOST_WAITING = 4 * LANES  # clients whose results may wait on the device for those of earlier clients
GAIN = 1.05  # minimum speed-up at which doubled lanes are kept
SPARE = 0.9  # maximum share of free memory for additional lanes
_DONE = object()  # no step is left

Replay = Callable[[], None]


class Cuda:
    """Device operations of lanes; tests substitute a recorder for CPU."""

    def __init__(self, device: torch.device) -> None:
        if device.type != "cuda":
            raise UserError(f"executor=graph records CUDA graphs, and this is device={device}; use executor=loop")
        self.device = device

    def queue(self) -> Any:
        """Return a new work queue: a stream, and the memory pool of its recordings."""
        return torch.cuda.Stream(self.device), torch.cuda.graph_pool_handle()

    def on(self, queue: Any) -> AbstractContextManager[Any]:
        """Return the context in which work is submitted to `queue`."""
        return torch.cuda.stream(queue[0])

    def begin(self, queue: Any) -> None:
        """Make `queue` wait for work submitted outside it."""
        queue[0].wait_stream(torch.cuda.current_stream(self.device))

    def wait(self) -> None:
        """Wait for all work."""
        torch.cuda.synchronize(self.device)

    def record(self, work: Callable[[], object], queue: Any) -> Replay:
        """Record the operations of `work` without running them; return a function that replays them."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=queue[1], stream=queue[0]):
            work()
        return graph.replay

    def memory(self) -> tuple[int, int]:
        """Return (bytes of device memory reserved by this process, free bytes)."""
        free, _ = torch.cuda.mem_get_info(self.device)
        return torch.cuda.memory_reserved(self.device), free

    def release(self) -> None:
        """Return unused memory to the device."""
        torch.cuda.empty_cache()


@dataclass
class Recording:
    """One kind of step: its input batch at a fixed address, and its replay."""

    x: Tensor
    y: Tensor
    seen: int = 0
    replay: Replay | None = None
    possible: bool = True


class ReplayLane:
    """One net in which clients train one after another by replaying recorded steps.

    Everything that a step reads has a fixed address, to which each visit is copied.
    """

    def __init__(self, trainer: LocalTrainer, machine: Cuda) -> None:
        self.trainer, self.machine, self.queue = trainer, machine, machine.queue()
        self.recordings: dict[tuple[int, int], Recording] = {}
        self.optimisers: dict[int, SGD] = {}
        device = trainer.data.device
        exact = torch.float64 if device.type == "cpu" else torch.float32  # required by torch's fused SGD
        self.lr = torch.zeros((), dtype=exact, device=device)
        self.round = torch.zeros((), dtype=trainer.protocol.dtype, device=device)
        self.position = Position(*(torch.zeros((), dtype=torch.long, device=device) for _ in range(3)))
        self.total = torch.zeros((), dtype=torch.float64, device=device)  # summed loss over images
        self.place: Visit | None = None
        self.flops: Counter[str] = Counter()  # by purpose, of the client in training

    def steps(self, state: State, client: int, most: int | None) -> Iterator[None]:
        """Submit one client's steps, one at a time, at most `most`."""
        trainer = self.trainer
        with self._counting():
            self.client, self.visit, self.taken, self.images = client, trainer.visit(state, client, most), 0, 0
        self._settle_in(self.visit)
        for leaf in trainer.params.values():
            leaf.grad = None
        trainer.net.train()
        for phase, epochs, trained_paths in trainer.phases():
            if phase not in self.optimisers:
                self.optimisers[phase] = trainer.optimiser(trained_paths, self.lr)
            for leaf in self.optimisers[phase].buffers:
                leaf.zero_()
            for epoch in epochs:
                for x, y in trainer.data.epoch(client, state.round, epoch, most):
                    with self._counting(), trainer.meter.step("train", f"{len(y)} phase {phase}"):
                        self._step(phase, trained_paths, x, y)
                    self.taken, self.images = self.taken + 1, self.images + len(y)
                    yield

    def finish(self, state: State) -> ClientResult:
        """Wait for the client whose steps were submitted; return its result, or raise `Diverged`."""
        visit = self.visit
        if self.trainer.method.carries and self.place is not None:
            visit = replace(visit, states={name: clone(tree) for name, tree in self.place.states.items()})
        with self._counting():
            return self.trainer.finish(
                state, self.client, visit, steps=self.taken, images=self.images, total=float(self.total)
            )

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Add the FLOPs that the meter counts in the block to those of the client."""
        flops = self.trainer.meter.flops
        before = dict(flops)
        try:
            yield
        finally:
            self.flops.update({purpose: total - before.get(purpose, 0) for purpose, total in flops.items()})

    def _settle_in(self, visit: Visit) -> None:
        """Copy a visit to the addresses that recorded steps read."""
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

    def _step(self, phase: int, trained_paths: list[str], x: Tensor, y: Tensor) -> None:
        kind = phase, len(y)
        if kind not in self.recordings:
            self.recordings[kind] = Recording(torch.empty_like(x), torch.empty_like(y))
        recording = self.recordings[kind]
        recording.x.copy_(x)
        recording.y.copy_(y)
        recording.seen += 1

        def work() -> None:
            assert self.place is not None
            loss = self.trainer.step(trained_paths, self.optimisers[phase], recording.x, recording.y, self.place)
            self.total.add_(loss.double() * len(recording.y))

        if recording.seen > EAGER and recording.possible and recording.replay is None:
            try:
                recording.replay = self.machine.record(work, self.queue)
            except RuntimeError as error:
                if ran_out_of_memory(error):
                    raise
                recording.possible = False
                for leaf in self.trainer.params.values():
                    leaf.grad = None  # of the step that was begun
                log.warning("a step cannot be recorded and runs at the speed of loop: %s", str(error).split("\n")[0])
        (recording.replay or work)()


class Graph(Loop):
    """Executor that trains clients in parallel lanes; each replays recorded steps on its own stream.

    Rounds with 1, 2, 4, ... lanes are timed, as far as memory allows, until doubling no longer pays. The assignment of
    clients to lanes and the order in which results are summed do not depend on timing.
    """

    name = "graph"
    machine: ClassVar[type[Cuda]] = Cuda

    def __init__(self, trainer: LocalTrainer) -> None:
        super().__init__(trainer)
        self.device = self.machine(trainer.data.device)
        self.lanes: list[ReplayLane] = []
        self.width = Width()

    def each(self, state: State, visits: RoundClients) -> Iterator[Trained]:
        for first in range(0, len(visits.clients), MOST_WAITING):
            done = self._train_all(state, visits.clients[first : first + MOST_WAITING], visits)
            for client in sorted(done):
                result = done.pop(client)
                if isinstance(result, Diverged):
                    raise result
                yield result

    def _train_all(self, state: State, clients: Sequence[int], visits: RoundClients) -> dict[int, Trained | Diverged]:
        """Return the results of `clients`, with fewer lanes if memory runs out."""
        done: dict[int, Trained | Diverged] = {}
        while len(done) < len(clients):
            todo = sorted(set(clients) - set(done), key=lambda client: (-self.trainer.data.size(client), client))
            try:
                self._round(state, todo, visits, done)
                continue
            except RuntimeError as error:
                if not ran_out_of_memory(error) or self.width.now == 1:
                    raise
            # Outside the handler, whose traceback holds the aborted lanes.
            self._forget_aborted()
            self.width.halve()
            log.warning("out of memory on %s: continuing with %d lanes", self.trainer.data.device, self.width.now)
            self._narrow()
        return done

    def together(self, clients: int, workers: int) -> int:
        return max(1, min(LANES, -(-clients // workers)))

    def _forget_aborted(self) -> None:
        """Take back the FLOPs of clients whose training was aborted: they train, and count, again."""
        flops = self.trainer.meter.flops
        for lane in self.lanes:
            for purpose, counted in lane.flops.items():
                flops[purpose] -= counted
            lane.flops.clear()

    def _round(self, state: State, todo: list[int], visits: RoundClients, done: dict[int, Trained | Diverged]) -> None:
        """Train the clients `todo`, largest first; each free lane takes the next one.

        A divergence is stored like a result: all clients finish, so which one is reported does not depend on timing.
        """
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
                    if next(steps, _DONE) is not _DONE:  # steps are submitted without waiting for them
                        continue
                    try:
                        finished = lane.finish(state)
                        kept = lane.trainer.copy() if lane.client in visits.keep else None
                        done[lane.client] = finished, kept
                    except Diverged as error:
                        done[lane.client] = error
                lane.flops.clear()
                images += lane.images
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

    def _begin(self, lane: ReplayLane, state: State, client: int, visits: RoundClients) -> Iterator[None]:
        self.device.begin(lane.queue)
        lane.trainer.lost = visits.lost
        return lane.steps(state, client, visits.turn(client).steps)

    def _narrow(self) -> None:
        """Drop the lanes beyond the width."""
        if len(self.lanes) > self.width.now:
            self.device.wait()  # submitted work still reads their memory
            del self.lanes[self.width.now :]
            self.device.release()

    def _lane(self, number: int) -> ReplayLane:
        """Return a new lane; the first uses the run's net, the others use copies."""
        one = self.trainer
        if number:
            one = LocalTrainer(copy.deepcopy(one.net), one.method, one.paths, data=one.data, meter=one.meter)
        return ReplayLane(one, self.device)


class Width:
    """Number of lanes, doubled while that is faster and memory lasts."""

    def __init__(self) -> None:
        self.now, self.lane_bytes = 1, 0
        self.best = 0.0  # images per second with half the lanes
        self.settled = False

    def learn(self, rate: float, clients: int, added: int, grown: int, free: int) -> None:
        """Update the width after a round of `clients` at `rate` images/s with `added` lanes; `grown`, `free`: bytes.

        The rate of a round with new lanes is ignored, because it includes recording their steps.
        """
        if added:
            self.lane_bytes = max(self.lane_bytes, grown // added)
        if added or self.settled:
            return
        if rate < GAIN * self.best:
            self.now //= 2
            self.settled = True
        elif 2 * self.now > min(LANES, clients) or self.now * self.lane_bytes > SPARE * free:
            self.settled = True
        else:
            self.now, self.best = 2 * self.now, rate

    def halve(self) -> None:
        """Halve the number of lanes for good."""
        self.now //= 2
        self.settled = True


def _leaves(visit: Visit) -> list[Tensor]:
    """Return the tensors of a visit in a fixed order."""
    trees = [visit.start, visit.start_buffers]
    trees += [states[name] for states in (visit.broadcast, visit.states) for name in sorted(states)]
    return [visit.counts, *(tree[path] for tree in trees for path in sorted(tree))]
