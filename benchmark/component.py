"""The one abstraction a method author meets: a `Component` is frozen hyper-parameters plus pure hooks.

A method is one base algorithm and an ordered list of add-ons. Both are components with the same hooks;
every hook defaults to "change nothing". Hooks draw no random numbers (but `net` and `init`), change none of their
inputs in place, and branch on shapes and settings only, never on the values of tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedspan.benchmark.net import Net
from fedspan.benchmark.registry import Plugin, decorator
from fedspan.benchmark.tree import Tree

if TYPE_CHECKING:
    from fedspan.benchmark.protocol import Protocol

Predicate = Callable[[str], bool]
Phases = list[tuple[int, Predicate]]
Upload = Mapping[str, Tensor | float]


@dataclass(frozen=True)
class Setting:
    """What a component may know before training starts."""

    classes: int
    shape: tuple[int, int, int]  # channels, height, width
    clients: int
    participation: float
    protocol: Protocol


@dataclass(slots=True)
class Step:
    """One local step as a hook sees it.

    `params` are the current weights (attached to the graph), `start` the weights at the start of the
    round, `x` [B, C, H, W], `y` [B], `features` [B, d], `logits` [B, classes], `counts` [classes] this
    client's samples per class, `server` what this component broadcast, `client` its own state here. `round`
    (from 0) and the learning rate `lr` are numbers, or scalar tensors where steps are recorded and replayed.
    """

    params: Mapping[str, Tensor]
    start: Mapping[str, Tensor]
    x: Tensor
    y: Tensor
    features: Tensor
    logits: Tensor
    counts: Tensor
    protocol: Protocol
    round: int | Tensor
    lr: float | Tensor
    server: Mapping[str, Tensor]
    client: Mapping[str, Tensor]
    forward: Callable[[Mapping[str, Tensor], Mapping[str, Tensor] | None], tuple[Tensor, Tensor]]
    gradient: Callable[[Mapping[str, Tensor]], Tree]

    def apply(self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Return (features, logits) of this batch under other weights: evaluation mode, no gradient."""
        return self.forward(params, buffers)

    def grad_at(self, params: Mapping[str, Tensor]) -> Tree:
        """Return the gradient of the whole objective on this batch at other weights."""
        return self.gradient(params)


@dataclass(frozen=True)
class Local:
    """A client's finished local training as `client_end` sees it.

    `start` and `params` are its weights before the first and after the last step, `buffers` its BatchNorm statistics,
    `steps` the SGD steps taken, `n` its training images, `counts` [classes] those of each class, `round` counts
    from 0. `server` is what this component broadcast, `client` its own state at this client before the round.
    """

    start: Mapping[str, Tensor]
    params: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    steps: int
    n: int
    counts: Tensor
    protocol: Protocol
    round: int
    server: Mapping[str, Tensor]
    client: Mapping[str, Tensor]


@dataclass(frozen=True)
class Aggregate:
    """A round's sums as `server` sees them: nothing of a single client.

    `params` are the global weights before the round, `sums` the uploads summed over participants in float64, `server`
    this component's server tree; `participants` of all `clients` took part and hold `samples` images together.
    """

    params: Mapping[str, Tensor]
    sums: Mapping[str, Tensor]
    server: Mapping[str, Tensor]
    participants: int
    clients: int
    samples: int
    protocol: Protocol
    round: int


class Component(Plugin):
    """Base of every algorithm and add-on.

    Class attributes:

    - `version`: part of the key; raise it when an edit changes results.
    - `neutral`: settings at which the component changes nothing, bit for bit; a contract test checks them.
    - `same_shapes`: choices that only change the values of weights, ``{setting: {choice: one that is quick to make}}``;
      costs, which follow from shapes, are those of the quick one. No part of the digest of its source.
    - `excludes`: names of components that it cannot be combined with.
    - `coefficient`: the setting that scales the penalty, if any; figures show the penalty without it.
    - `pools`: `calibrate` gets the features [n, d] and labels [n] of all clients instead of sums. For bounds only.
    - `one_client`: one client trains on the images of all, every round, and nothing travels. For bounds only.
    """

    neutral: ClassVar[Mapping[str, Any]] = {}
    same_shapes: ClassVar[Mapping[str, Mapping[Any, Any]]] = {}
    excludes: ClassVar[tuple[str, ...]] = ()
    coefficient: ClassVar[str] = ""
    pools: ClassVar[bool] = False
    one_client: ClassVar[bool] = False

    # once -----------------------------------------------------------------------------------------

    def check(self, setting: Setting) -> None:
        """Raise `Incompatible` if this component makes no sense on this task or protocol."""

    def net(self, net: Net, setting: Setting) -> Net:
        """Return the model to train; torch's global generator is seeded for initialisers."""
        return net

    def init(
        self, params: Mapping[str, Tensor], shared: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> tuple[Tree, Tree]:
        """Return the initial (server tree, client tree) from the initial weights, the shared ones, and the buffers.

        As in `net`, torch's global generator is seeded; with `init_per_client` for each client anew.
        """
        return {}, {}

    def trainable(self, path: str) -> bool:
        """Tell whether local steps may move this weight; True only if all components agree."""
        return True

    def shared(self, path: str, module: nn.Module) -> bool:
        """Tell whether this weight or buffer travels and is averaged; if not it stays with its client."""
        return True

    def phases(self, epochs: int) -> Phases:
        """Return consecutive (epochs, which weights move) of a round; at most one component."""
        return [(epochs, lambda path: True)]

    # per step -------------------------------------------------------------------------------------

    def loss(self, step: Step) -> Tensor:
        """Return the scalar loss of a batch; at most one component, default cross-entropy."""
        return F.cross_entropy(step.logits, step.y)

    def penalty(self, step: Step) -> Tensor:
        """Return a scalar to add to the loss; summed over components."""
        raise NotImplementedError

    def grads(self, grads: Tree, step: Step) -> Tree:
        """Return the gradients that the optimiser sees; chained, base first."""
        return grads

    def shift(self, step: Step) -> Tree:
        """Return a tree to add to the weights after the optimiser's step, past its momentum; summed."""
        raise NotImplementedError

    # per round ------------------------------------------------------------------------------------

    def broadcast(self, server: Mapping[str, Tensor]) -> Tree:
        """Return the part of the server tree that every sampled client receives (its bytes are counted)."""
        return {}

    def client_end(self, delta: Tree, local: Local) -> tuple[Tree, Upload, Tree]:
        """Return (delta, upload to be summed over clients, client tree); delta = end - start, chained."""
        return delta, {}, dict(local.client)

    def server(self, delta: Tree, agg: Aggregate) -> tuple[Tree, Tree]:
        """Return (delta, server tree); delta is the sample-weighted mean, the result is added to the weights."""
        return delta, dict(agg.server)

    # after ----------------------------------------------------------------------------------------

    def stats(self, features: Tensor, labels: Tensor, classes: int) -> Tree:
        """Return float64 statistics of a client's features [n, d] and labels [n], to be summed over all clients."""
        raise NotImplementedError

    def calibration_cost(self, images: int, clients: int, features: int, classes: int) -> tuple[int, int] | None:
        """Return (numbers sent by all clients, FLOPs on clients and server) of a calibration, or None if unknown.

        `images` counts those of all clients. FLOPs are those of matrix products.
        """
        return None

    def calibrate(self, params: Mapping[str, Tensor], sums: Mapping[str, Tensor], rng: torch.Generator) -> Tree:
        """Return the weights of the stage `calibrated` from the summed statistics; at most one component."""
        raise NotImplementedError

    def personalise(
        self, params: Mapping[str, Tensor], features: Tensor, labels: Tensor, classes: int, rng: torch.Generator
    ) -> Tree:
        """Return a client's own weights, the stage `personalised`, from its features [n, d] and labels [n].

        `params` are the trained weights that this client uses; at most one component.
        """
        raise NotImplementedError

    # what the settings make of it -----------------------------------------------------------------

    @property
    def idle(self) -> frozenset[str]:
        """Hooks that this class overrides but that do nothing under these settings; they conflict with no component."""
        return frozenset()

    @property
    def calibrates_every(self) -> int:
        """Calibrate after every so many rounds and train on from there; 0: only at the end."""
        return 0

    @property
    def moves_statistics(self) -> bool:
        """Whether deltas include changes of BatchNorm's running statistics, which are averaged otherwise."""
        return False

    @property
    def warm_up(self) -> float:
        """Share of the rounds, from the first on, in which every weight travels whatever `shared` says."""
        return 0.0

    @property
    def init_per_client(self) -> bool:
        """Whether `init` draws a tree for each client; otherwise all clients start from the same one."""
        return False

    @property
    def trains(self) -> bool:
        """Whether it takes part in training; cells that differ only in components that do not share a trained model."""
        return self.calibrates_every > 0 or any(acts_in(self, hook) for hook in HOOKS if hook not in AFTER_TRAINING)


algorithm = decorator("algorithm")
addon = decorator("addon")

HOOKS = tuple(name for name, member in vars(Component).items() if inspect.isfunction(member))
AFTER_TRAINING = ("check", "stats", "calibrate", "calibration_cost", "personalise")


def acts_in(component: Component, hook: str) -> bool:
    """Tell whether `component` does anything in `hook` under its settings."""
    return getattr(type(component), hook) is not getattr(Component, hook) and hook not in component.idle
