"""The one abstraction a method author meets: a `Component` is frozen hyper-parameters plus pure hooks.

A method is one base algorithm and an ordered list of add-ons. Both are components with the same hooks;
every hook defaults to "change nothing". Hooks draw random numbers only from the keyed generators that they are given
(`net` and `init` from torch's global one, which is seeded), change none of their inputs in place, and branch on shapes
and settings only, never on the values of tensors; `client_start` and `own`, from which no cost follows, may read them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedspan.benchmark.download import Download
from fedspan.benchmark.local_images import LocalImages, OfOutputs
from fedspan.benchmark.net import Net
from fedspan.benchmark.registry import Plugin, decorator
from fedspan.benchmark.tree import Tree

if TYPE_CHECKING:
    from fedspan.benchmark.protocol import Protocol

Predicate = Callable[[str], bool]
Phases = list[tuple[int, Predicate]]
Upload = Mapping[str, Tensor | float]
Forward = Callable[[Mapping[str, Tensor], Mapping[str, Tensor] | None], tuple[Tensor, Tensor]]
Gradient = Callable[[Mapping[str, Tensor], Mapping[str, Tensor] | None, slice | None], tuple[Tree, Tree]]


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
    client's samples per class, `server` what this component sent it, `client` its own state here. It is step
    `number` (from 0) of the `steps` that the client takes in this round, `epoch_steps` of them in an epoch. These,
    `round` (from 0) and the learning rate `lr` are numbers, or scalar tensors where steps are recorded or stacked.
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
    number: int | Tensor
    steps: int | Tensor
    epoch_steps: int | Tensor
    server: Mapping[str, Tensor]
    client: Mapping[str, Tensor]
    forward: Forward
    gradient: Gradient

    @property
    def epoch(self) -> int | Tensor:
        """The local epoch that this step belongs to, from 0."""
        return self.number // self.epoch_steps

    def apply(self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Return (features, logits) of this batch under other weights: evaluation mode, no gradient."""
        return self.forward(params, buffers)

    def grad_at(self, params: Mapping[str, Tensor], rows: slice | None = None) -> Tree:
        """Return the gradient of the whole objective at other weights, on this batch or some of its rows."""
        return self.gradient(params, None, rows)[0]

    def learn_at(
        self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], rows: slice | None = None
    ) -> tuple[Tree, Tree]:
        """Return what `grad_at` does for another model, and the BatchNorm statistics that it has afterwards."""
        return self.gradient(params, buffers, rows)


@dataclass(frozen=True)
class Local:
    """A client as `client_start`, `client_end`, `wire` and `own` see it: around its training, and after the last round.

    `start` are the weights that it has before the round, `params` and `buffers` (BatchNorm statistics) those that it
    has now, `steps` the SGD steps in between. It holds `n` training images, `counts` [classes] of each class; `round`
    counts from 0. `server` is what this component sent it, `client` its own state here. `rng` is a generator on the
    CPU, keyed by seed, hook, component, round and client: what is drawn depends on no order, worker or resume.
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
    rng: torch.Generator
    images: LocalImages

    @property
    def y(self) -> Tensor:
        """The labels [n] of the client's training images, in their order."""
        return self.images.labels()

    def apply(self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Return (features [n, d], logits [n, classes]) of all its training images, as they are: evaluation mode."""
        return self.images.forward(params, self.buffers if buffers is None else buffers)

    def grad_at(self, params: Mapping[str, Tensor], rows: Tensor | None = None) -> Tree:
        """Return the gradient of the loss, without penalties, on all its training images or those at `rows` [k]."""
        return self.images.gradient(params, self.buffers, rows, None)[1]

    def loss_at(
        self, params: Mapping[str, Tensor], rows: Tensor | None = None, of: Collection[str] | None = None
    ) -> tuple[Tensor, Tree]:
        """Return that loss, a scalar, and its gradient in the trainable weights among `of`; by default in all."""
        return self.images.gradient(params, self.buffers, rows, of)[:2]

    def learn_at(
        self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], rows: Tensor | None = None
    ) -> tuple[Tree, Tree]:
        """Return what `grad_at` does for another model, and the BatchNorm statistics that it has afterwards."""
        return self.images.gradient(params, buffers, rows, None)[1:]

    def output_grad_at(self, params: Mapping[str, Tensor], function: OfOutputs, rows: Tensor | None = None) -> Tree:
        """Return the gradient of ``function(features, logits)``, a scalar, there: evaluation mode, no labels."""
        return self.images.output_gradient(params, self.buffers, function, rows)


@dataclass(frozen=True)
class Aggregate:
    """A round's sums as `server` sees them: nothing of a single client.

    `params` are the global weights before the round, `sums` the uploads summed over participants in float64, `server`
    this component's server tree; `participants` of all `clients` took part and hold `samples` images together, and on
    average `expected` do. `rng` is a generator on the CPU, keyed by seed, component and round.
    """

    params: Mapping[str, Tensor]
    sums: Mapping[str, Tensor]
    server: Mapping[str, Tensor]
    participants: int
    clients: int
    samples: int
    protocol: Protocol
    round: int
    rng: torch.Generator = field(default_factory=torch.Generator)
    expected: float = 0.0


@dataclass(frozen=True)
class Wire:
    """How an update is written for its way to the server: `numbers` of `bits` each, and `extra` bits beside them."""

    numbers: int
    bits: float
    extra: float = 0.0

    @property
    def bytes(self) -> int:
        """The whole bytes that it takes."""
        return math.ceil((self.numbers * self.bits + self.extra) / 8)


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
    - `every_round`: `server` is asked in rounds from which nothing arrives too, with a delta of zeros.
    """

    neutral: ClassVar[Mapping[str, Any]] = {}
    same_shapes: ClassVar[Mapping[str, Mapping[Any, Any]]] = {}
    excludes: ClassVar[tuple[str, ...]] = ()
    coefficient: ClassVar[str] = ""
    pools: ClassVar[bool] = False
    one_client: ClassVar[bool] = False
    every_round: ClassVar[bool] = False

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

    def carry(self, grads: Tree, step: Step) -> Tree:
        """Return the client tree after this batch, before its `grads` are edited and the weights move.

        `grads` and later hooks see the new tree: the next step, `client_end`, the client's next round.
        """
        return dict(step.client)

    def shift(self, step: Step) -> Tree:
        """Return a tree to add to the weights after the optimiser's step, past its momentum; summed."""
        raise NotImplementedError

    # per round ------------------------------------------------------------------------------------

    def weights(self, counts: Tensor, samples: int) -> Tensor:
        """Return the participants' weights in the mean, [m], of any sum; at most one component.

        `counts` [m, classes] (float64) are their images of each class, `samples` the images of all clients. A weight is
        finite and not negative; BatchNorm's statistics are averaged by the same weights.
        """
        return counts.sum(1)

    def broadcast(self, server: Mapping[str, Tensor]) -> Tree:
        """Return the part of the server tree that every sampled client receives (its bytes are counted)."""
        return {}

    def message(self, download: Download) -> Tree:
        """Return what this client alone receives, beside `broadcast`: names and shapes are always the same.

        A component with this hook sees more than sums, and lists and pages say so. `own` is not shown the message.
        """
        return {}

    def client_start(self, params: Tree, local: Local) -> tuple[Tree, Tree]:
        """Return (the weights a client starts training from, client tree), given those it received or kept; chained.

        Deltas and `start` are still those of `params`. Later hooks of the round see the new tree.
        """
        return params, dict(local.client)

    def client_end(self, delta: Tree, local: Local) -> tuple[Tree, Upload, Tree]:
        """Return (delta, upload to be summed over clients, client tree); delta = end - start, chained."""
        return delta, {}, dict(local.client)

    def wire(self, size: Wire, delta: Tree, local: Local) -> Wire:
        """Return how the delta that leaves the client is written, from its size so far; chained.

        The default is dense. It follows from shapes alone. Uploads travel beside it.
        """
        return size

    def aggregate(self, updates: Mapping[int, Tree], agg: Aggregate) -> Tree:
        """Return the round's delta, made of single clients' deltas by client; at most one component, default the mean.

        A component with this hook sees more than sums, and lists and pages say so.
        """
        raise NotImplementedError

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

    def own(self, params: Tree, local: Local) -> Tree:
        """Return a client's own weights and statistics, the stage `personalised`, from its tree or its images.

        `params` are the trained weights that it would use otherwise; where the method personalises too, it starts from
        what this returns. What is left out stays. At most one component.
        """
        raise NotImplementedError

    def privacy(self, setting: Setting) -> tuple[float, float]:
        """Return (epsilon, delta) of the whole training, which become scores; at most one component.

        It stands between clients and server: `client_end` comes last, `server` first and in empty rounds too, and
        nothing but the delta may leave a client. Asked before the first round; it may raise `Incompatible`.
        """
        raise NotImplementedError

    # properties that depend on settings -----------------------------------------------------------------

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
        """Whether it acts during training; cells that differ only in what acts later share one trained model."""
        return self.calibrates_every > 0 or any(acts_in(self, hook) for hook in HOOKS if hook not in AFTER_TRAINING)


algorithm = decorator("algorithm")
addon = decorator("addon")

HOOKS = tuple(name for name, member in vars(Component).items() if inspect.isfunction(member))
AFTER_TRAINING = ("check", "stats", "calibrate", "calibration_cost", "personalise", "own")


def acts_in(component: Component, hook: str) -> bool:
    """Tell whether `component` does anything in `hook` under its settings."""
    return getattr(type(component), hook) is not getattr(Component, hook) and hook not in component.idle
