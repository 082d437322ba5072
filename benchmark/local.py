"""A client's local training: the same for every method, which acts through its hooks alone."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import functional_call

from benchmark.component import Local, Method, States, Step, Upload
from benchmark.data import DeviceData
from benchmark.errors import Diverged
from benchmark.meter import Meter
from benchmark.net import Net, buffers_of, parameters_of
from benchmark.sgd import SGD
from benchmark.state import Paths, Row, State
from benchmark.tree import Tree, clone, finite, to_device


@dataclass(frozen=True)
class Finished:
    """What one client hands back: `delta` and `buffers` of what is shared, uploads, its row, its mean loss."""

    client: int
    n: int
    steps: int
    images: int
    delta: Tree
    buffers: Tree
    uploads: dict[str, Upload]
    row: Row
    loss: float


class LocalTrainer:
    """Trains one client after another in one net, whose memory is reused."""

    def __init__(self, net: Net, method: Method, paths: Paths, data: DeviceData, meter: Meter) -> None:
        self.net, self.method, self.paths, self.data, self.meter = net, method, paths, data, meter
        self.protocol = data.protocol
        self.params = parameters_of(net)
        self.buffers = buffers_of(net)

    def load(self, state: State, row: Row) -> tuple[Tree, Tree]:
        """Put the global weights and the client's own ones into the net; return both as (params, buffers)."""
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

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which the net runs."""
        if self.protocol.precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast(self.data.device.type, torch.bfloat16)

    def train(self, state: State, client: int) -> Finished:
        """Run one client's local epochs of round `state.round`; raise `Diverged` on a non-finite loss."""
        protocol, method, device = self.protocol, self.method, self.data.device
        row = state.row(client)
        start, start_buffers = self.load(state, row)
        states = {name: to_device(tree, device) for name, tree in row.states.items()}
        broadcast = method.broadcast(state.server)
        counts = self.data.counts(client)
        losses: list[Tensor] = []  # read once at the end: on CUDA each reading would wait for the device
        sizes: list[int] = []
        epochs_done = 0
        self.net.train()
        for phase, (epochs, moving) in enumerate(method.phases(protocol.local_epochs)):
            moved = [path for path in self.params if path in self.paths.trainable and moving(path)]
            for path, leaf in self.params.items():
                leaf.requires_grad_(path in moved)
            optimiser = SGD(
                [self.params[path] for path in moved],
                lr=protocol.lr_at(state.round),
                momentum=protocol.momentum,
                weight_decay=protocol.weight_decay,
            )
            for epoch in range(epochs_done, epochs_done + epochs):
                for x, y in self.data.epoch(client, state.round, epoch):
                    with self.meter.step("train", f"{len(y)} phase {phase}"):
                        step = self._step(x, y, start, start_buffers, counts, state.round, broadcast, states)
                        loss = self._differentiate(moved, step, broadcast, states)
                    optimiser.step()
                    self._shift(moved, step, broadcast, states)
                    losses.append(loss.detach())
                    sizes.append(len(y))
            epochs_done += epochs
        total = float(torch.stack(losses).double() @ torch.tensor(sizes, dtype=torch.float64, device=device))
        return self.finish(state, client, start, counts, broadcast, states, len(sizes), sum(sizes), total)

    def outputs(self, net: Net, leaves: Mapping[str, Tensor] | None, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return (features, logits) of `net`, under other `leaves` if given, in the protocol's type."""
        with self.autocast():
            features, logits = net(x) if leaves is None else functional_call(net, dict(leaves), (x,))
        if features.dtype != self.protocol.dtype:
            features, logits = features.to(self.protocol.dtype), logits.to(self.protocol.dtype)
        return features, logits

    def evaluated(self, net: Net, leaves: Mapping[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """Return (features, logits) of `net` under other `leaves`, in evaluation mode and without gradient."""
        net.eval()
        try:
            with torch.no_grad():
                return self.outputs(net, leaves, x)
        finally:
            net.train()

    def _step(
        self,
        x: Tensor,
        y: Tensor,
        start: Tree,
        start_buffers: Tree,
        counts: Tensor,
        round: int,
        broadcast: States,
        states: States,
    ) -> Step:
        """Run the forward pass and return what the hooks see of it."""
        features, logits = self.outputs(self.net, None, x)

        def forward(params: Mapping[str, Tensor], buffers: Mapping[str, Tensor] | None = None) -> tuple[Tensor, Tensor]:
            return self.evaluated(self.net, {**params, **(start_buffers if buffers is None else buffers)}, x)

        def gradient(params: Mapping[str, Tensor]) -> Tree:
            leaves = {path: leaf.detach().clone() for path, leaf in params.items()}
            moving = {path: leaves[path].requires_grad_() for path, live in self.params.items() if live.requires_grad}
            with torch.enable_grad(), self.autocast():
                features, logits = functional_call(self.net, {**leaves, **clone(self.buffers)}, (x,))
                there = replace(step, params=leaves, features=features.to(x.dtype), logits=logits.to(x.dtype))
                loss = self.method.objective(there, broadcast, states)
            grads = torch.autograd.grad(loss, list(moving.values()), materialize_grads=True)
            return dict(zip(moving, grads, strict=True))

        step = Step(self.params, start, x, y, features, logits, counts, self.protocol, round, {}, {}, forward, gradient)
        return step

    def _differentiate(self, moved: list[str], step: Step, broadcast: States, states: States) -> Tensor:
        """Put into the net the gradients that the optimiser is to see; return the loss."""
        loss = self.method.objective(step, broadcast, states)
        loss.backward()
        if self.method.edits_gradients:
            self._edit_gradients(moved, step, broadcast, states)
        return loss

    def step_flops(self, state: State) -> int:
        """Return the FLOPs of a step on one whole batch; the net may be on the device `meta`: it computes nothing."""
        data, device = self.data, self.data.device
        x = torch.zeros(self.protocol.batch_size, *data.shape, dtype=self.protocol.dtype, device=device)
        y = torch.zeros(len(x), dtype=torch.long, device=device)
        counts = torch.ones(data.classes, dtype=self.protocol.dtype, device=device)
        broadcast, states = self.method.broadcast(state.server), state.first_row.states
        [(_, moving), *_] = self.method.phases(self.protocol.local_epochs)
        moved = [path for path in self.params if path in self.paths.trainable and moving(path)]
        for path, leaf in self.params.items():
            leaf.requires_grad_(path in moved)
        self.net.train()
        with self.meter.step("probe", "step"):
            step = self._step(x, y, state.params, state.buffers, counts, 0, broadcast, states)
            self._differentiate(moved, step, broadcast, states)
        return self.meter.flops["probe"]

    def _edit_gradients(self, moved: list[str], step: Step, broadcast: States, states: States) -> None:
        grads = {path: _gradient_of(self.params[path]) for path in moved}
        with torch.no_grad():
            grads = self.method.grads(grads, step, broadcast, states)
        for path in moved:
            self.params[path].grad = grads[path]

    @torch.no_grad()
    def _shift(self, moved: list[str], step: Step, broadcast: States, states: States) -> None:
        for shift in self.method.shifts(step, broadcast, states):
            for path in moved:
                if path in shift:
                    self.params[path] += shift[path]

    @torch.no_grad()
    def finish(
        self,
        state: State,
        client: int,
        start: Tree,
        counts: Tensor,
        broadcast: States,
        states: States,
        steps: int,
        images: int,
        total: float,
    ) -> Finished:
        """Return what a client whose trained weights are in the net hands back; `total` is its loss over images.

        Raises `Diverged` if that or a weight is not finite.
        """
        loss = total / max(images, 1)
        if not math.isfinite(loss):
            raise Diverged(f"round {state.round + 1}, client {client}: the training loss is {loss}")
        if not finite(self.params):  # the last step can do it without a loss that tells
            raise Diverged(f"round {state.round + 1}, client {client}: the trained weights are not finite")
        n = self.data.size(client)
        delta = {path: self.params[path].detach() - start[path] for path in self.paths.shared}
        uploads: dict[str, Upload] = {name: {} for name in states}
        rows = states
        if self.method.using("client_end"):
            params, buffers = clone(self.params), clone(self.buffers)

            def local(name: str) -> Local:
                return Local(
                    start, params, buffers, steps, n, counts, self.protocol, state.round, broadcast[name], states[name]
                )

            delta, uploads, rows = self.method.client_end(delta, local)
        live = self.params | self.buffers
        own = {path: live[path].detach().clone() for path in self.paths.own}
        buffers = {path: self.buffers[path].detach().clone() for path in self.paths.shared_buffers}
        return Finished(client, n, steps, images, delta, buffers, uploads, Row(own, rows), loss)


def _gradient_of(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
