"""Local training of a client: the same for every method, which acts only through its hooks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import functional_call

from fedspan.benchmark.component import Local, Step, Upload, Wire
from fedspan.benchmark.data.batches import DeviceData
from fedspan.benchmark.errors import Diverged
from fedspan.benchmark.method import Method, States
from fedspan.benchmark.net import Net, Twin, buffers_of, parameters_of
from fedspan.benchmark.records.model import LARGEST
from fedspan.benchmark.sgd import SGD
from fedspan.benchmark.training.client_view import received, views
from fedspan.benchmark.training.meter import Meter
from fedspan.benchmark.training.state import Paths, Row, State
from fedspan.benchmark.tree import Tree, clone, finite, in_layout_of, nbytes, overwrite, to_device

if TYPE_CHECKING:
    from fedspan.benchmark.training.workers.pool import Pool


@dataclass
class Position:
    """A client's position in its round: before step `number` of `steps`, with `epoch_steps` per epoch.

    Scalar tensors if steps are recorded, counted up in place.
    """

    number: int | Tensor
    steps: int | Tensor
    epoch_steps: int | Tensor


@dataclass(frozen=True)
class Visit:
    """Inputs of a client's training in one round: its initial weights, and what hooks see in addition to a batch.

    `states` are the client's own trees, by component, on the device; steps change them if a component carries them.
    """

    start: Tree
    start_buffers: Tree
    counts: Tensor
    round: int | Tensor
    lr: float | Tensor
    broadcast: States
    states: States
    position: Position


@dataclass(frozen=True)
class ClientResult:
    """One client's result: `delta` and `buffers` of shared leaves by path, uploads by component, and its new row.

    The client holds `n` images and has processed `images` in `steps` steps; `loss` is the mean per processed image.
    `sent_bytes` is the size of delta and buffers on the wire.
    """

    client: int
    n: int
    steps: int
    images: int
    delta: Tree
    buffers: Tree
    uploads: dict[str, Upload]
    row: Row
    loss: float
    sent_bytes: int


class LocalTrainer:
    """Trainer of one client after another in one net, whose memory is reused."""

    def __init__(self, net: Net, method: Method, paths: Paths, data: DeviceData, meter: Meter) -> None:
        self.net, self.method, self.paths, self.data, self.meter = net, method, paths, data, meter
        self.protocol = data.protocol
        self.params = parameters_of(net)
        self.buffers = buffers_of(net)
        self.pool: Pool | None = None  # workers that run calls instead of this process
        self.lost: frozenset[int] = frozenset()  # clients of the round whose results will not arrive

    def each(
        self,
        state: State,
        function: Callable[..., Any],
        calls: Sequence[Sequence[Any]],
        costs: Sequence[float],
        held: int = 0,
    ) -> Iterator[Any]:
        """Yield ``function(*call)`` for each call, in order, computed by workers if any, else in this process.

        Trainer and `state` in a call become those of the process that runs it; a worker's state holds no rows. `costs`
        are in any unit, `held` is the approximate size of a result in bytes.
        """
        if self.pool is not None:
            yield from self.pool.each(state, function, calls, costs, held)
        else:
            yield from (function(*call) for call in calls)

    def load(self, state: State, row: Row) -> tuple[Tree, Tree]:
        """Load the global weights and the client's own ones into the net; return both as (params, buffers)."""
        own = to_device(row.own, self.data.device)
        params, buffers = {**state.params}, {**state.buffers}
        for path, leaf in own.items():
            (params if path in params else buffers)[path] = leaf
        self.put(params | buffers)
        return params, buffers

    @torch.no_grad()
    def put(self, leaves: Mapping[str, Tensor]) -> None:
        """Copy weights and buffers into the net."""
        live = self.params | self.buffers
        if leaves:
            torch._foreach_copy_([live[path] for path in leaves], list(leaves.values()))

    def copy(self) -> Tree:
        """Return a copy of the net's weights and buffers."""
        return clone(self.params | self.buffers)

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Return the autocast context of the net's forward pass."""
        if self.protocol.precision != "bf16" or self.data.device.type == "meta":  # `meta` has no autocast
            return contextlib.nullcontext()
        return torch.autocast(self.data.device.type, torch.bfloat16)

    def visit(self, state: State, client: int, steps: int | None = None) -> Visit:
        """Load a client's initial weights of round `state.round` into the net; return its visit, of at most `steps`.

        The weights in the net differ from the visit's `start` if a component changes them in `client_start`.
        """
        row = state.row(client)
        start, start_buffers = self.load(state, row)
        states = {name: to_device(tree, self.data.device) for name, tree in row.states.items()}
        visit = Visit(
            start=start,
            start_buffers=start_buffers,
            counts=self.data.counts(client),
            round=state.round,
            lr=self.protocol.lr_at(state.round),
            broadcast=received(self, state, client),
            states=self._carried(states),
            position=self.position(self.data.size(client), steps),
        )
        if self.method.using("client_start"):
            with torch.no_grad():
                seen = views(self, "client_start", client, visit, start, start_buffers)
                params, changed = self.method.client_start(start, seen)
            self.put(params)
            visit.states.update(self._carried(changed))
        return visit

    def _carried(self, states: States) -> States:
        """Return a client's trees, copied if a component changes them from step to step."""
        return {name: clone(tree) for name, tree in states.items()} if self.method.carries else states

    def position(self, images: int, steps: int | None = None) -> Position:
        """Return the position before the first step of a client with `images`, which takes at most `steps`."""
        epochs = sum(epochs for epochs, _ in self.method.phases(self.protocol.local_epochs))
        epoch_steps = len(self.data.batch_sizes(images))
        whole = epochs * epoch_steps
        return Position(0, whole if steps is None else min(steps, whole), epoch_steps)

    def phases(self) -> Iterator[tuple[int, range, list[str]]]:
        """Yield number, epochs and trained weights of each phase of a visit; only these weights require gradients."""
        done = 0
        for number, (epochs, moving) in enumerate(self.method.phases(self.protocol.local_epochs)):
            trained_paths = [path for path in self.params if path in self.paths.trainable and moving(path)]
            for path, leaf in self.params.items():
                leaf.requires_grad_(path in trained_paths)
            yield number, range(done, done + epochs), trained_paths
            done += epochs

    def optimiser(self, trained_paths: list[str], lr: float | Tensor) -> SGD:
        """Return the optimiser of one phase."""
        leaves = [self.params[path] for path in trained_paths]
        return SGD(leaves, lr=lr, momentum=self.protocol.momentum, weight_decay=self.protocol.weight_decay)

    def train(self, state: State, client: int, steps: int | None = None) -> ClientResult:
        """Run one client's local epochs of round `state.round`, or its first `steps` local steps.

        Raises `Diverged` as `finish` does.
        """
        visit = self.visit(state, client, steps)
        losses: list[Tensor] = []  # read once at the end: on CUDA each read would wait for the device
        sizes: list[int] = []
        self.net.train()
        for phase, epochs, trained_paths in self.phases():
            optimiser = self.optimiser(trained_paths, visit.lr)
            for epoch in epochs:
                for x, y in self.data.epoch(client, state.round, epoch, steps):
                    with self.meter.step("train", f"{len(y)} phase {phase}"):
                        losses.append(self.step(trained_paths, optimiser, x, y, visit))
                    sizes.append(len(y))
            del optimiser  # for tens of millions of weights, momentum would fill the memory
        images = torch.tensor(sizes, dtype=torch.float64, device=self.data.device)
        total = float(torch.stack(losses).double() @ images)
        return self.finish(state, client, visit, steps=len(sizes), images=sum(sizes), total=total)

    def step(self, trained_paths: list[str], optimiser: SGD, x: Tensor, y: Tensor, visit: Visit) -> Tensor:
        """Take one step on a batch; return its loss."""
        step = self.step_view(x, y, visit, self.params, self.outputs(self.net, None, x))
        loss = self._differentiate(trained_paths, step, visit)
        optimiser.step()
        self._shift(trained_paths, step, visit)
        visit.position.number += 1
        return loss.detach()

    def outputs(self, net: Net, leaves: Mapping[str, Tensor] | None, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return (features, logits) of `net`, under other `leaves` if given, in the protocol's dtype."""
        with self.autocast():
            features, logits = net(x) if leaves is None else functional_call(net, dict(leaves), (x,))
        if features.dtype != self.protocol.dtype:
            features, logits = features.to(self.protocol.dtype), logits.to(self.protocol.dtype)
        return features, logits

    @cached_property
    def twin(self) -> Twin:
        """The net for forward passes under other weights."""
        return Twin(self.net)

    def evaluate_under(self, twin: Twin, leaves: Mapping[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """Return (features, logits) under other `leaves`, in evaluation mode and without gradient."""
        with torch.no_grad():
            return self.outputs(twin.under(leaves), None, x)

    def step_view(
        self, x: Tensor, y: Tensor, visit: Visit, params: Mapping[str, Tensor], outputs: tuple[Tensor, Tensor]
    ) -> Step:
        """Return the hooks' view of a batch, whose (features, logits) under `params` are `outputs`."""
        features, logits = outputs

        def forward(params: Mapping[str, Tensor], buffers: Mapping[str, Tensor] | None = None) -> tuple[Tensor, Tensor]:
            others = {**params, **(visit.start_buffers if buffers is None else buffers)}
            return self.evaluate_under(self.twin, {**self.params, **self.buffers, **others}, x)

        def gradient(
            params: Mapping[str, Tensor], buffers: Mapping[str, Tensor] | None, rows: slice | None
        ) -> tuple[Tree, Tree]:
            leaves, statistics = clone(params), clone(self.buffers if buffers is None else buffers)
            moving = {path: leaves[path].requires_grad_() for path, live in self.params.items() if live.requires_grad}
            part = slice(None) if rows is None else rows
            with torch.enable_grad():
                outputs = self.outputs(self.net, {**leaves, **statistics}, x[part])
                there = self.step_view(x[part], y[part], visit, leaves, outputs)
                loss = self.method.attached(self.method.objective(there, visit.broadcast, visit.states))
            grads = torch.autograd.grad(loss, list(moving.values()), materialize_grads=True)
            return dict(zip(moving, grads, strict=True)), statistics

        return Step(
            params=params,
            start=visit.start,
            x=x,
            y=y,
            features=features,
            logits=logits,
            counts=visit.counts,
            mean_images=self.data.mean_images,
            protocol=self.protocol,
            round=visit.round,
            lr=visit.lr,
            **vars(visit.position),
            server={},
            client={},
            forward=forward,
            gradient=gradient,
        )

    def _differentiate(self, trained_paths: list[str], step: Step, visit: Visit) -> Tensor:
        """Compute the gradients for the optimiser in the net; return the loss."""
        loss = self.method.attached(self.method.objective(step, visit.broadcast, visit.states))
        loss.backward()
        method = self.method
        if not (method.carries or method.edits_gradients):
            return loss
        grads = {path: _gradient_of(self.params[path]) for path in trained_paths}
        with torch.no_grad():
            for name, tree in method.carry(grads, step, visit.broadcast, visit.states).items():
                overwrite(visit.states[name], tree)
            if method.edits_gradients:
                grads = method.grads(grads, step, visit.broadcast, visit.states)
                leaves = {path: self.params[path] for path in trained_paths}
                for path, grad in in_layout_of(leaves, grads).items():
                    leaves[path].grad = grad
        return loss

    def first_visit(self, state: State) -> Visit:
        """Return the first-round visit of a client with images of every class, without computing anything."""
        counts = torch.ones(self.data.classes, dtype=self.protocol.dtype, device=self.data.device)
        return Visit(
            start=state.params,
            start_buffers=state.buffers,
            counts=counts,
            round=0,
            lr=self.protocol.lr_at(0),
            broadcast=received(self, state, 0),
            states=self._carried(state.first_row.states),
            position=self.position(self.protocol.batch_size),
        )

    def step_costs(self, state: State) -> list[tuple[int, int, int]]:
        """Return (epochs, FLOPs, bytes) for each phase of a visit, the latter two of a step on one full batch.

        The net may be on the device `meta`, where no values are computed.
        """
        data, device = self.data, self.data.device
        x = torch.zeros(self.protocol.batch_size, *data.shape, dtype=self.protocol.dtype, device=device)
        x = x.to(memory_format=data.memory_format)
        y = torch.zeros(len(x), dtype=torch.long, device=device)
        visit = self.first_visit(state)
        self.net.train()
        found = []
        for _, epochs, trained_paths in self.phases():
            meter, optimiser = Meter(), self.optimiser(trained_paths, visit.lr)
            with meter.step("probe", "step"):
                self.step(trained_paths, optimiser, x, y, visit)
            found.append((len(epochs), meter.flops["probe"], meter.memory["probe"]))
        return found

    @torch.no_grad()
    def _shift(self, trained_paths: list[str], step: Step, visit: Visit) -> None:
        for shift in self.method.shifts(step, visit.broadcast, visit.states):
            for path in trained_paths:
                if path in shift:
                    self.params[path] += shift[path]

    @torch.no_grad()
    def finish(self, state: State, client: int, visit: Visit, steps: int, images: int, total: float) -> ClientResult:
        """Return the result of the client whose trained weights are in the net; `total` is its loss summed over images.

        Raises `Diverged` if the mean loss exceeds the range of a record or a weight is not finite, except for a client
        in `lost`, of which only the work counts.
        """
        visit.position.number = steps  # executors keep their own counters
        loss = total / max(images, 1)
        if client in self.lost and not (abs(loss) <= LARGEST and finite(self.params)):
            return ClientResult(client, self.data.size(client), steps, images, {}, {}, {}, Row({}, {}), 0.0, 0)
        if not abs(loss) <= LARGEST:
            raise Diverged(f"round {state.round + 1}, client {client}: the training loss is {loss}")
        if not finite(self.params):  # the last step can overflow without any later loss showing it
            raise Diverged(f"round {state.round + 1}, client {client}: the trained weights are not finite")
        return self.result(state, client, visit, steps=steps, images=images, loss=loss)

    @torch.no_grad()
    def result(self, state: State, client: int, visit: Visit, steps: int, images: int, loss: float) -> ClientResult:
        """Return the result of the client whose trained weights are in the net, unchecked."""
        n, paths = self.data.size(client), self.paths.at(state.round, self.net)
        # in the net's order: the order of a set differs between processes, and hooks draw leaf by leaf
        delta = {path: w.detach() - visit.start[path] for path, w in self.params.items() if path in paths.shared}
        buffers = {path: b.detach().clone() for path, b in self.buffers.items() if path in paths.shared_buffers}
        if self.method.moves_statistics:
            delta |= {path: buffers.pop(path) - visit.start_buffers[path] for path in list(buffers)}
        uploads: dict[str, Upload] = {name: {} for name in visit.states}
        rows = visit.states
        written = None
        if self.method.using("client_end") or self.method.using("wire"):
            now = clone(self.params), clone(self.buffers)
            seen = {hook: views(self, hook, client, visit, *now, steps) for hook in ("client_end", "wire")}
            delta, uploads, rows = self.method.client_end(delta, seen["client_end"])
            written = self._written(delta, seen["wire"]) if self.method.using("wire") else None
        live = self.params | self.buffers
        own = {path: leaf.detach().clone() for path, leaf in live.items() if path in paths.own}  # in the net's order
        return ClientResult(
            client=client,
            n=n,
            steps=steps,
            images=images,
            delta=delta,
            buffers=buffers,
            uploads=uploads,
            row=Row(own, rows),
            loss=loss,
            sent_bytes=(nbytes(delta) if written is None else written) + nbytes(buffers),
        )

    def _written(self, delta: Tree, local: Callable[[str], Local]) -> int:
        """Return the bytes of a delta in the encoding of the method's components."""
        numbers = sum(leaf.numel() for leaf in delta.values())
        dense = Wire(numbers, 8 * nbytes(delta) / max(numbers, 1))
        return self.method.wire(dense, delta, local).bytes


def _gradient_of(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
