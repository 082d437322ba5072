"""Many small clients at once: weights are stacked and each operation runs once for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedspan.benchmark.component import Step
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.method import States
from fedspan.benchmark.net import Twin
from fedspan.benchmark.sgd import update
from fedspan.benchmark.training.executors.loop import Loop, RoundClients, Trained
from fedspan.benchmark.training.executors.stacked_layers import stackable
from fedspan.benchmark.training.local import ClientResult, LocalTrainer, Position
from fedspan.benchmark.training.state import State
from fedspan.benchmark.tree import Tree, clone

LANES = 10  # clients in parallel; twice as many do not fit into the second-level cache

Batch = tuple[Tensor, Tensor]


@dataclass
class StackLane:
    """One client in local training: its position and its next batch."""

    number: int
    client: int
    batches: Iterator[Batch]
    position: Position
    batch: Batch | None = None
    loss: Tensor | float = 0.0
    images: int = 0

    def size(self) -> int:
        """Return the number of images in the next batch."""
        return 0 if self.batch is None else len(self.batch[1])

    def fetch(self) -> None:
        """Fetch the next batch, or None after the last."""
        self.batch = next(self.batches, None)


@dataclass
class Stack:
    """The leaves of all lanes, stacked along a first axis of lanes in each tree but `broadcast`."""

    params: Tree
    buffers: Tree
    momentum: Tree
    counts: Tensor
    own_start: Tree
    states: States
    trained_paths: list[str]
    broadcast: States

    def of(self, lanes: Sequence[StackLane]) -> Stack:
        """Return a copy of the stack with only some lanes."""
        index = torch.tensor([lane.number for lane in lanes], device=self.counts.device)

        def take(tree: Tree) -> Tree:
            return {path: leaf.detach().index_select(0, index) for path, leaf in tree.items()}

        return Stack(
            params=take(self.params),
            buffers=take(self.buffers),
            momentum=take(self.momentum),
            counts=self.counts[index],
            own_start=take(self.own_start),
            states={name: take(tree) for name, tree in self.states.items()},
            trained_paths=self.trained_paths,
            broadcast=self.broadcast,
        )

    def put(self, part: Stack, lanes: Sequence[StackLane]) -> None:
        """Write back the changes from a step of some lanes."""
        index = torch.tensor([lane.number for lane in lanes], device=self.counts.device)
        with torch.no_grad():
            for mine, theirs in (
                (self.params, part.params), (self.buffers, part.buffers), (self.momentum, part.momentum)
            ):  # fmt: skip
                for path, leaf in mine.items():
                    leaf.index_copy_(0, index, theirs[path])


class Vmap(Loop):
    """Executor that trains several clients in parallel, one step of each per operation; equals `loop` up to rounding.

    Lanes whose next batches have the same size take a step together, whatever their epoch. Methods that edit gradients
    or steps, carry state from step to step, change where clients start, send messages to single clients, or train in
    phases run as in `loop`, and so does a single remaining client.
    """

    name = "vmap"

    def __init__(self, trainer: LocalTrainer) -> None:
        super().__init__(trainer)
        self.net = stackable(trainer.net, trainer.data.device).train()
        self.twin = Twin(self.net)

    def each(self, state: State, visits: RoundClients) -> Iterator[Trained]:
        self.trainer.lost = visits.lost
        for first in range(0, len(visits.clients), LANES):
            together = replace(visits, clients=visits.clients[first : first + LANES])
            one_by_one = len(together.clients) == 1 or not self._stacks
            yield from (super().each if one_by_one else self._stacked)(state, together)

    def together(self, clients: int, workers: int) -> int:
        return LANES if self._stacks else 1  # a stack of other clients would round differently

    @property
    def _stacks(self) -> bool:
        """Whether clients of this method can be stacked."""
        method = self.trainer.method
        return not method.needs_sequential_steps and len(method.phases(self.trainer.protocol.local_epochs)) == 1

    def _stacked(self, state: State, visits: RoundClients) -> Iterator[Trained]:
        """Train the clients in parallel."""
        lanes, stack = self._begin(state, visits)
        while going := [lane for lane in lanes if lane.batch is not None]:
            self._advance(state, stack, going, len(lanes))
        for lane in lanes:
            leaves = {path: leaf[lane.number].detach() for path, leaf in (stack.params | stack.buffers).items()}
            yield self._end(state, lane, leaves), clone(leaves) if lane.client in visits.keep else None
            visits.tick()

    def _begin(self, state: State, visits: RoundClients) -> tuple[list[StackLane], Stack]:
        """Return the clients' lanes, each with its first batch, and their stacked leaves."""
        data, protocol, clients = self.trainer.data, self.trainer.protocol, visits.clients
        rows = [state.row(client) for client in clients]
        lanes = [
            StackLane(
                number,
                client,
                batches=self._batches(state, client, visits.turn(client).steps),
                position=self.trainer.position(data.size(client), visits.turn(client).steps),
            )
            for number, client in enumerate(clients)
        ]
        for lane in lanes:
            lane.fetch()

        def stacked(trees: Sequence[Mapping[str, Tensor]]) -> Tree:
            return {path: torch.stack([tree[path].to(data.device) for tree in trees]) for path in trees[0]}

        own = stacked([row.own for row in rows])

        def of_all(tree: Tree) -> Tree:
            return {path: own.get(path, leaf.expand(len(lanes), *leaf.shape)).clone() for path, leaf in tree.items()}

        params = of_all(state.params)
        [(_, _, trained_paths)] = self.trainer.phases()
        stack = Stack(
            params=params,
            buffers=of_all(state.buffers),
            momentum={path: torch.zeros_like(params[path]) for path in trained_paths if protocol.momentum},
            counts=torch.stack([data.counts(client) for client in clients]),
            own_start=own,
            states={name: stacked([row.states[name] for row in rows]) for name in rows[0].states},
            trained_paths=trained_paths,
            broadcast=self.trainer.method.broadcast(state.server),
        )
        return lanes, stack

    def _batches(self, state: State, client: int, steps: int | None) -> Iterator[Batch]:
        [(epochs, _)] = self.trainer.method.phases(self.trainer.protocol.local_epochs)
        for epoch in range(epochs):
            yield from self.trainer.data.epoch(client, state.round, epoch, steps)

    def _advance(self, state: State, stack: Stack, going: list[StackLane], count: int) -> None:
        """Take one step of every lane, together for lanes with equal batch sizes."""
        for _, group in groupby(sorted(going, key=StackLane.size), key=StackLane.size):
            lanes = list(group)
            part = stack if len(lanes) == count else stack.of(lanes)
            self._step(state, part, lanes)
            if part is not stack:
                stack.put(part, lanes)

    def _step(self, state: State, stack: Stack, lanes: list[StackLane]) -> None:
        """Take one step of `lanes`, whose leaves are in `stack`, in place."""
        trainer, method, protocol = self.trainer, self.trainer.method, self.trainer.protocol
        batches = [lane.batch for lane in lanes if lane.batch is not None]
        x, y = (torch.stack(part) for part in zip(*batches, strict=True))
        for path in stack.trained_paths:
            stack.params[path].requires_grad_()

        def seen(params: Tree, buffers: Tree, x: Tensor, y: Tensor, counts: Tensor, own: Tree, at: Tensor) -> Step:
            features, logits = trainer.outputs(self.net, {**params, **buffers}, x)

            def forward(weights: Mapping[str, Tensor], stats: Mapping[str, Tensor] | None) -> tuple[Tensor, Tensor]:
                others = {**weights, **(begun(state.buffers, own) if stats is None else stats)}
                return trainer.evaluate_under(self.twin, {**params, **buffers, **others}, x)

            return Step(
                params=params,
                start=begun(state.params, own),
                x=x,
                y=y,
                features=features,
                logits=logits,
                counts=counts,
                mean_images=trainer.data.mean_images,
                protocol=protocol,
                round=state.round,
                lr=protocol.lr_at(state.round),
                number=at[0],
                steps=at[1],
                epoch_steps=at[2],
                server={},
                client={},
                forward=forward,
                gradient=_no_gradient,
            )

        def objective(states: States, *arguments: Any) -> Tensor:
            return method.objective(seen(*arguments), stack.broadcast, states)

        size, positions = len(y[0]), torch.tensor([[*vars(lane.position).values()] for lane in lanes]).to(y.device)
        with trainer.meter.step("train", f"{size} phase 0", len(lanes)):
            inputs = stack.params, stack.buffers, x, y, stack.counts, stack.own_start, positions
            losses = vmap(objective)(stack.states, *inputs)
            method.attached(losses).sum().backward()
            self._update(stack, protocol.lr_at(state.round))
        for lane, loss in zip(lanes, losses.detach().double().unbind(), strict=True):
            lane.loss += loss * size
            lane.position.number += 1
            lane.images += size
            lane.fetch()

    @torch.no_grad()
    def _update(self, stack: Stack, lr: float) -> None:
        protocol = self.trainer.protocol
        leaves = [(path, stack.params[path]) for path in stack.trained_paths if stack.params[path].grad is not None]
        update(
            [leaf for _, leaf in leaves],
            [leaf.grad for _, leaf in leaves],  # type: ignore[misc]
            [stack.momentum[path] for path, _ in leaves if protocol.momentum],
            lr, protocol.momentum, protocol.weight_decay,
        )  # fmt: skip
        for _, leaf in leaves:
            leaf.grad = None

    def _end(self, state: State, lane: StackLane, leaves: Tree) -> ClientResult:
        """Return the result of a lane's client after its last batch."""
        visit = self.trainer.visit(state, lane.client)
        self.trainer.put(leaves)
        return self.trainer.finish(
            state, lane.client, visit, steps=int(lane.position.number), images=lane.images, total=float(lane.loss)
        )


def begun(tree: Tree, own: Tree) -> Tree:
    """Return a client's leaves at the start of a round: global leaves of `tree`, except for its own ones."""
    return {path: own.get(path, leaf) for path, leaf in tree.items()}


def _no_gradient(params: Mapping[str, Tensor], *others: Any) -> tuple[Tree, Tree]:
    raise UserError("a loss or penalty asks for gradients at other weights, which cannot be stacked; use executor=loop")
