"""FedALA."""

from collections.abc import Mapping
from statistics import pstdev
from typing import Annotated

import torch
from torch import Tensor

from fedspan.benchmark.component import Component, Local, algorithm
from fedspan.benchmark.errors import Incompatible, require
from fedspan.benchmark.search import choice, fixed
from fedspan.benchmark.tree import Tree, prefixed, tree_map, under

WEIGHT, MODEL, LEARNT = "weight", "model", "learnt"
WINDOW = 10  # passes whose losses decide whether the mixing weights have converged


@algorithm("fedala")
class FedALA(Component):
    """Zhang et al. 2023 (AAAI), Algorithm 1: each client starts from its own mixture of global and last local model.

    The lower layers are the global ones. In the last `layers` layers each weight is ``v + W (w - v)``, with w global
    and v from the end of the client's last training. W starts at 1 and descends the loss of the mixture by gradient
    steps of rate `eta`, clipped to [0, 1], over batches of a random `share` of the client's images, not augmented:
    until convergence the first time that v and w differ, for one pass in every later round. v is the initial model
    until the client has trained, so a client that joins after the first round starts from a mixture with it. The whole
    model is sent and averaged, as in FedAvg. The stage ``personalised`` scores the mixture of a client's last model
    with the last global one, as the authors' code does; ``trained`` scores the global model.

    W has converged when the final losses of the last 10 passes have a standard deviation below `threshold` (0.1 by
    default in the authors' code, which does not bound the `passes`). That code also mixes the models of clients that do
    not participate, draws the random share as consecutive images, and drops the last, short batch. BatchNorm uses the
    received statistics, but batch statistics while W is learnt.
    """

    title = "FedALA"
    summary = "Each client learns, weight by weight, how much of the global model to start from."
    papers = ("zhang2023",)

    layers: Annotated[int, choice(1, 2, 3, source="ours, around the authors' 1")] = 1
    share: Annotated[float, choice(0.2, 0.5, 0.8, 1.0, source="ours, around the authors' 0.8")] = 0.8
    eta: Annotated[float, choice(0.1, 1.0, 10.0, source="ours, around the authors' 1")] = 1.0
    threshold: Annotated[float, fixed("when to stop the first time; it sets the compute")] = 0.1
    passes: Annotated[int, fixed("it bounds the compute")] = 100
    neutral = {"layers": 0}

    def __post_init__(self) -> None:
        require(self.layers >= 0, "algorithm.layers", "must not be negative", self.layers)
        require(0 < self.share <= 1, "algorithm.share", "must lie in (0, 1]", self.share)
        require(self.eta > 0, "algorithm.eta", "must be positive", self.eta)
        require(self.threshold > 0, "algorithm.threshold", "must be positive", self.threshold)
        require(self.passes >= 1, "algorithm.passes", "must be at least 1", self.passes)

    @property
    def idle(self) -> frozenset[str]:
        return frozenset({"client_start", "client_end", "own"} if self.layers == 0 else ())

    def init(
        self, params: Mapping[str, Tensor], shared: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> tuple[Tree, Tree]:
        if self.layers == 0:
            return {}, {}
        top = last_layers(params, self.layers)
        if not top.keys() & shared.keys():
            raise Incompatible(
                f"'fedala' mixes the last {self.layers} of the layers, of which none is trained here, so all clients "
                f"have the same; use algorithm.layers={self.layers + 1} or more"
            )
        flag = next(iter(params.values())).new_zeros(())
        return {}, prefixed(WEIGHT, tree_map(torch.ones_like, top)) | prefixed(MODEL, top) | {LEARNT: flag}

    def client_start(self, params: Tree, local: Local) -> tuple[Tree, Tree]:
        mine, weight = under(MODEL, local.client), under(WEIGHT, local.client)
        if all(torch.equal(mine[path], params[path]) for path in mine):  # nothing to mix
            return params, dict(local.client)
        weight = self._learnt(params, mine, weight, local)
        learnt = prefixed(WEIGHT, weight) | {LEARNT: torch.ones_like(local.client[LEARNT])}
        return mixed(params, mine, weight), dict(local.client) | learnt

    def client_end(self, delta: Tree, local: Local) -> tuple[Tree, Tree, Tree]:
        return delta, {}, dict(local.client) | prefixed(MODEL, last_layers(local.params, self.layers))

    def own(self, params: Tree, local: Local) -> Tree:
        return self.client_start(params, local)[0]

    def _learnt(self, params: Tree, mine: Tree, weight: Tree, local: Local) -> Tree:
        """Return the mixing weights after one pass over a share of the images (many passes the first time)."""
        rows = torch.randperm(local.n, generator=local.rng)[: max(1, int(self.share * local.n))]
        losses: list[float] = []
        for _ in range(1 if local.client[LEARNT] else self.passes):
            for batch in rows.split(local.protocol.batch_size):
                loss, grads = local.loss_at(mixed(params, mine, weight), batch, of=mine)
                slopes = {path: g * (params[path] - mine[path]) for path, g in grads.items()}
                weight = weight | {path: (weight[path] - self.eta * g).clamp(0, 1) for path, g in slopes.items()}
            losses.append(float(loss))
            if len(losses) > WINDOW and pstdev(losses[-WINDOW:]) < self.threshold:
                break
        return weight


def last_layers(params: Mapping[str, Tensor], count: int) -> Tree:
    """Return the weights of the last `count` modules that have any."""
    layers = list(dict.fromkeys(path.rpartition(".")[0] for path in params))[-count:]
    return {path: leaf for path, leaf in params.items() if path.rpartition(".")[0] in layers}


def mixed(params: Mapping[str, Tensor], mine: Tree, weight: Tree) -> Tree:
    """Return `params` with ``v + W (w - v)`` for the client's own weights `mine`."""
    return {**params, **{path: v + weight[path] * (params[path] - v) for path, v in mine.items()}}
