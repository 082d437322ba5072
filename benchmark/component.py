"""`Component`, the one abstraction that method authors need: frozen hyper-parameters plus pure hooks.

A method is one base algorithm and an ordered list of add-ons. Both are components with the same hooks; every hook
defaults to "change nothing". Hooks draw random numbers only from the keyed generators they are given (`net` and `init`
from torch's seeded global generator) and modify no input in place. Costs, CUDA graphs and `vmap` trace `init`,
`broadcast`, the hooks of a step, `client_end` and `wire` without values, so these branch on shapes and settings only;
so does `message`, except on the updates. Other hooks may read values.
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
    """Facts available to a component before training starts."""

    classes: int
    shape: tuple[int, int, int]  # channels, height, width
    clients: int
    participation: float
    protocol: Protocol


@dataclass(slots=True)
class Step:
    """One local step as seen by a hook.

    `params` are the current weights (attached to the graph), `start` the weights at the start of the round. The batch
    has images `x` [B, C, H, W], labels `y` [B], `features` [B, d] and `logits` [B, classes]. `counts` [classes] are the
    client's samples per class; a client holds `mean_images` on average. `server` is the tree that this component sent
    to the client, `client` this component's client tree. `number` (from 0) is the step's index among the `steps` of the
    client in this round; an epoch has `epoch_steps`. These, `round` (from 0) and the learning rate `lr` are numbers, or
    scalar tensors if steps are recorded (CUDA graphs) or stacked over clients.
    """

    params: Mapping[str, Tensor]
    start: Mapping[str, Tensor]
    x: Tensor
    y: Tensor
    features: Tensor
    logits: Tensor
    counts: Tensor
    mean_images: float
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
        """The local epoch of this step, from 0."""
        return self.number // self.epoch_steps

    def apply(self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Return (features, logits) of this batch under other weights, in evaluation mode and without gradients."""
        return self.forward(params, buffers)

    def grad_at(self, params: Mapping[str, Tensor], rows: slice | None = None) -> Tree:
        """Return the gradient of loss plus penalties at other weights, on this batch or on `rows` of it."""
        return self.gradient(params, None, rows)[0]

    def learn_at(
        self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], rows: slice | None = None
    ) -> tuple[Tree, Tree]:
        """Return (gradient as in `grad_at`, updated BatchNorm statistics) of another model."""
        return self.gradient(params, buffers, rows)


@dataclass(frozen=True)
class Local:
    """A client as seen by `client_start`, `client_end` and `wire` around training, and by `own` after the last round.

    `start` are the weights before the round, `params` and `buffers` (BatchNorm statistics) the current ones, `steps`
    SGD steps later; they fill in for entries that a call omits. The client holds `n` training images,
    `counts` [classes] per class, and clients hold `mean_images` on average; `round` counts from 0. `server` is the tree
    that this component sent to the client, `client` its client tree. `rng` is a CPU generator keyed by seed, hook,
    component, round and client.
    """

    start: Mapping[str, Tensor]
    params: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    steps: int
    n: int
    mean_images: float
    counts: Tensor
    protocol: Protocol
    round: int
    server: Mapping[str, Tensor]
    client: Mapping[str, Tensor]
    rng: torch.Generator
    images: LocalImages

    @property
    def y(self) -> Tensor:
        """The labels [n] of the client's training images, in the order of the rows of `apply`."""
        return self.images.labels()

    def apply(self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Return (features [n, d], logits [n, classes]) of all training images, unaugmented, in evaluation mode."""
        return self.images.forward({**self.params, **params}, {**self.buffers, **(buffers or {})})

    def grad_at(self, params: Mapping[str, Tensor], rows: Tensor | None = None) -> Tree:
        """Return the gradient of the loss, without penalties, on all training images or those at `rows` [k]."""
        return self.images.gradient({**self.params, **params}, self.buffers, rows, None)[1]

    def loss_at(
        self, params: Mapping[str, Tensor], rows: Tensor | None = None, of: Collection[str] | None = None
    ) -> tuple[Tensor, Tree]:
        """Return (scalar loss, gradient) as in `grad_at`, for the trainable weights among `of`, by default for all."""
        return self.images.gradient({**self.params, **params}, self.buffers, rows, of)[:2]

    def learn_at(
        self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], rows: Tensor | None = None
    ) -> tuple[Tree, Tree]:
        """Return (gradient as in `grad_at`, updated BatchNorm statistics) of another model."""
        return self.images.gradient({**self.params, **params}, {**self.buffers, **buffers}, rows, None)[1:]

    def output_grad_at(self, params: Mapping[str, Tensor], function: OfOutputs, rows: Tensor | None = None) -> Tree:
        """Return the gradient of a scalar ``function(features, logits)``, which sees no labels, in evaluation mode."""
        return self.images.output_gradient({**self.params, **params}, self.buffers, function, rows)


@dataclass(frozen=True)
class Aggregate:
    """A round's sums as seen by `server`, without data of single clients.

    `params` are the global weights before the round, `sums` the uploads summed over participants in float64, `server`
    this component's server tree. Of the `clients`, `participants` took part and hold `samples` images together.
    `expected` is the expected number of sampled clients. `rng` is a CPU generator keyed by seed, hook, component and
    round.
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
    """The encoding of an update sent to the server: `numbers` values of `bits` each, plus `extra` bits."""

    numbers: int
    bits: float
    extra: float = 0.0

    @property
    def bytes(self) -> int:
        """The size in bytes, rounded up."""
        return math.ceil((self.numbers * self.bits + self.extra) / 8)


class Component(Plugin):
    """Base of every algorithm and add-on.

    Class attributes:

    - `version`: part of the cell key; raise it when an edit changes results.
    - `neutral`: settings under which the component changes nothing, bit for bit; a contract test checks this.
    - `same_shapes`: choices that change only the values of weights, ``{setting: {choice: cheaper choice}}``; costs
      depend on shapes alone and are computed with the cheaper one. Not part of the source digest.
    - `excludes`: names of components that cannot be combined with this one, or a mapping of names to reasons.
    - `coefficient`: the setting that scales the penalty, if any; figures show the unscaled penalty.
    - `pools`: `calibrate` receives the features [n, d] and labels [n] of all clients instead of sums. For bounds only.
    - `one_client`: one client trains on all clients' images every round; nothing is communicated. For bounds only.
    - `every_round`: `server` is also called in rounds in which no update arrives, with a delta of zeros.
    - `server_sees`: what else the server learns of single clients, for lists and pages. Not part of the digest.
    """

    neutral: ClassVar[Mapping[str, Any]] = {}
    same_shapes: ClassVar[Mapping[str, Mapping[Any, Any]]] = {}
    excludes: ClassVar[tuple[str, ...] | Mapping[str, str]] = ()
    coefficient: ClassVar[str] = ""
    pools: ClassVar[bool] = False
    one_client: ClassVar[bool] = False
    every_round: ClassVar[bool] = False
    server_sees: ClassVar[str] = ""

    # once -----------------------------------------------------------------------------------------
    def check(self, setting: Setting) -> None:
        """Raise `Incompatible` if this component makes no sense on this task or protocol."""

    def net(self, net: Net, setting: Setting) -> Net:
        """Return the model to train; torch's global generator is seeded for initialisers."""
        return net

    def init(
        self, params: Mapping[str, Tensor], shared: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> tuple[Tree, Tree]:
        """Return the initial (server tree, client tree), given initial weights, shared weights and buffers.

        As in `net`, torch's global generator is seeded; with `init_per_client` it is seeded for each client.
        """
        return {}, {}

    def trainable(self, path: str) -> bool:
        """Return whether local steps may update this weight; True only if all components agree."""
        return True

    def shared(self, path: str, module: nn.Module) -> bool:
        """Return whether this weight or buffer is communicated and averaged; if not, it stays on its client."""
        return True

    def phases(self, epochs: int) -> Phases:
        """Return a round's phases in order, as (epochs, predicate of weights to update); at most one component."""
        return [(epochs, lambda path: True)]

    # per step -------------------------------------------------------------------------------------
    def loss(self, step: Step) -> Tensor:
        """Return the scalar loss of a batch; at most one component, default cross-entropy."""
        return F.cross_entropy(step.logits, step.y)

    def penalty(self, step: Step) -> Tensor:
        """Return a scalar to add to the loss; summed over components."""
        raise NotImplementedError

    def grads(self, grads: Tree, step: Step) -> Tree:
        """Return the gradients passed to the optimiser; chained, base first."""
        return grads

    def carry(self, grads: Tree, step: Step) -> Tree:
        """Return the client tree after this batch, given its gradients before `grads` edits them and weights move.

        The new tree is visible to `grads` and later hooks: the next step, `client_end`, the client's next round.
        """
        return dict(step.client)

    def shift(self, step: Step) -> Tree:
        """Return a tree to add to the weights after the optimiser step, bypassing momentum; summed over components."""
        raise NotImplementedError

    # per round ------------------------------------------------------------------------------------
    def weights(self, counts: Tensor, samples: int) -> Tensor:
        """Return the participants' aggregation weights [m], which need not sum to 1; at most one component.

        `counts` [m, classes] (float64) are their images per class, `samples` is the number of images of all clients.
        Weights must be finite, non-negative and not all 0; BatchNorm statistics are averaged with the same weights.
        """
        return counts.sum(1)

    def broadcast(self, server: Mapping[str, Tensor]) -> Tree:
        """Return the part of the server tree that every sampled client receives (its bytes are counted)."""
        return {}

    def message(self, download: Download) -> Tree:
        """Return a tree for this client alone, in addition to `broadcast`; its names and shapes must never change.

        A component with this hook sees more than sums; lists and pages say so. `own` does not see the message.
        """
        return {}

    def client_start(self, params: Tree, local: Local) -> tuple[Tree, Tree]:
        """Return (weights from which the client trains, client tree), given the weights received or kept; chained.

        Deltas and `start` still refer to the weights received or kept. Later hooks of the round see the new tree.
        """
        return params, dict(local.client)

    def client_end(self, delta: Tree, local: Local) -> tuple[Tree, Upload, Tree]:
        """Return (delta, upload to be summed over clients, client tree); delta = end - start, chained."""
        return delta, {}, dict(local.client)

    def wire(self, size: Wire, delta: Tree, local: Local) -> Wire:
        """Return the encoding of the delta that leaves the client, given the encoding so far; chained.

        The default is dense. The encoding must depend on shapes alone. Uploads are sent, and counted, separately.
        """
        return size

    def aggregate(self, updates: Mapping[int, Tree], agg: Aggregate) -> Tree:
        """Return the round's delta from the clients' deltas, which the server then sees one by one (default: mean)."""
        raise NotImplementedError

    def server(self, delta: Tree, agg: Aggregate) -> tuple[Tree, Tree]:
        """Return (delta, server tree); delta is the weighted mean update, the result is added to the weights."""
        return delta, dict(agg.server)

    # after ----------------------------------------------------------------------------------------
    def stats(self, features: Tensor, labels: Tensor, classes: int) -> Tree:
        """Return float64 statistics of a client's features [n, d] and labels [n], to be summed over all clients."""
        raise NotImplementedError

    def calibration_cost(self, images: int, clients: int, features: int, classes: int) -> tuple[int, int] | None:
        """Return (numbers sent by all clients, FLOPs on clients and server) of a calibration, or None if unknown.

        `images` is the total over all clients. FLOPs count matrix products only.
        """
        return None

    def calibrate(self, params: Mapping[str, Tensor], sums: Mapping[str, Tensor], rng: torch.Generator) -> Tree:
        """Return all weights of the `calibrated` stage, given the summed statistics; at most one component."""
        raise NotImplementedError

    def personalise(
        self, params: Mapping[str, Tensor], features: Tensor, labels: Tensor, classes: int, rng: torch.Generator
    ) -> Tree:
        """Return a client's own weights for the `personalised` stage, given its features [n, d] and labels [n].

        `params` are the trained weights that this client uses; at most one component.
        """
        raise NotImplementedError

    def own(self, params: Tree, local: Local) -> Tree:
        """Return a client's own weights and statistics for the `personalised` stage, from its tree or its images.

        `params` are the trained weights that it would otherwise use; omitted entries stay unchanged. If the method also
        has `personalise`, that hook starts from the result. At most one component.
        """
        raise NotImplementedError

    def privacy(self, setting: Setting) -> tuple[float, float]:
        """Return (epsilon, delta) of the whole training, recorded as scores; at most one component.

        The component sits between clients and server: its `client_end` runs last, its `server` first and also in empty
        rounds, and only the delta may leave a client. Called before the first round; may raise `Incompatible`.
        """
        raise NotImplementedError

    # properties that depend on settings -----------------------------------------------------------------
    @property
    def idle(self) -> frozenset[str]:
        """Overridden hooks that do nothing under these settings, and so conflict with no other component."""
        return frozenset()

    @property
    def calibrates_every(self) -> int:
        """Interval in rounds at which to calibrate and continue training from the result; 0: only at the end."""
        return 0

    @property
    def moves_statistics(self) -> bool:
        """Whether deltas include changes of BatchNorm running statistics, which are otherwise averaged."""
        return False

    @property
    def warm_up(self) -> float:
        """Share of the rounds, from the first on, in which every weight is communicated regardless of `shared`."""
        return 0.0

    @property
    def init_per_client(self) -> bool:
        """Whether `init` draws a separate tree for each client; otherwise all clients start from the same tree."""
        return False

    @property
    def trains(self) -> bool:
        """Whether the component acts during training; cells that differ only after training share a trained model."""
        rules = (self.calibrates_every, self.warm_up, self.moves_statistics, self.init_per_client, self.one_client)
        return any(rules) or any(acts_in(self, hook) for hook in HOOKS if hook not in AFTER_TRAINING)


algorithm = decorator("algorithm")
addon = decorator("addon")

HOOKS = tuple(name for name, member in vars(Component).items() if inspect.isfunction(member))
AFTER_TRAINING = ("check", "stats", "calibrate", "calibration_cost", "personalise", "own")


def acts_in(component: Component, hook: str) -> bool:
    """Return whether `component` does anything in `hook` under its settings."""
    return getattr(type(component), hook) is not getattr(Component, hook) and hook not in component.idle
