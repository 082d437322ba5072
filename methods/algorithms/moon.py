"""MOON."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedspan.benchmark.component import Component, Local, Setting, Step, algorithm
from fedspan.benchmark.errors import require
from fedspan.benchmark.net import Net
from fedspan.benchmark.registry import later
from fedspan.benchmark.search import choice, fixed
from fedspan.benchmark.tree import Tree, tree_map


def _shuffled(leaf: Tensor) -> Tensor:
    return leaf.flatten()[torch.randperm(leaf.numel()).to(leaf.device)].view_as(leaf)


class ProjectingHead(nn.Linear):
    """A linear classifier behind a projection from `features` [B, d] to [B, width]."""

    def __init__(self, projection: nn.Module, features: int, width: int, classes: int) -> None:
        super().__init__(width, classes)
        self.in_features, self.projection = features, projection

    def forward(self, features: Tensor) -> Tensor:
        return super().forward(self.projection(features))


@algorithm("moon")
class Moon(Component):
    """Li et al. 2021 (CVPR), Eq. 3: features close to the global model's and far from the client's previous model's.

    The penalty is ``mu`` times the cross-entropy of telling the global from the previous model's features, with cosine
    similarities over ``temperature`` as logits. `projection` lists the widths of a projection head between body and
    classifier; without one the body's features are compared. The two other models run in evaluation mode, with their
    own BatchNorm statistics and without gradient.

    mu defaults to FedDecorr's (2023, App. F; tuned over 0.1, 1, 5, 10); the paper's own best values are 5, 1, 1 on
    CIFAR10, CIFAR100, TinyImageNet. Where the paper and released code differ:

    - temperature: the default 0.5 is from MOON's paper (Sec. 4.1) and code. FedDecorr's papers name none; their
      released code has an option, 0.5 by default, that it never reads: it computes with 1.
    - projection: 2 layers to 256 dimensions. In the paper the hidden layer is as wide as the features; FedDecorr uses
      [640, 256] for CIFAR with MobileNetV2, and none on TinyImageNet.
    - representation, for add-ons and diagnostics: FedDecorr's released code penalises the projected one; its papers do
      not say which. Calibrations of a linear classifier need ``projected``.
    - previous, for a client that never trained: ``global`` is the initial global model, so the first round is FedAvg's,
      as in the authors' code, which has no previous model in its first round. FedDecorr's code initialises a model for
      each client, like ``untrained``: the initial weights, each tensor shuffled independently for every client; so does
      the authors', from the second round on, for clients not yet sampled. Later it is the client's model at the end of
      its last round.
    - Released code computes gradients for the other two models and drops them, which costs only time.
    """

    title = "MOON"
    summary = "A contrastive loss pulls features to the global model's, away from the client's previous model's."
    papers = ("li2021moon",)
    wording = {
        "projection": "projection {}",
        "representation": {"body": "body features", "projected": "projected features"},
        "previous": {"global": "global model as first previous", "untrained": "untrained first previous"},
    }

    mu: Annotated[float, choice(0.1, 1.0, 5.0, 10.0, source="FedDecorr 2023, App. F")] = 1.0
    temperature: Annotated[float, fixed("0.5 in the paper and its code")] = 0.5
    projection: Annotated[tuple[int, ...], fixed("it belongs to the model")] = (640, 256)
    representation: Literal["projected", "body"] = later("projected")
    previous: Literal["global", "untrained"] = later("global")
    neutral = {"mu": 0.0, "projection": ()}
    coefficient = "mu"

    def __post_init__(self) -> None:
        require(self.mu >= 0, "algorithm.mu", "must not be negative", self.mu)
        require(self.temperature > 0, "algorithm.temperature", "must be positive", self.temperature)
        require(
            min(self.projection, default=1) >= 1,
            "algorithm.projection",
            "must be widths of at least 1",
            self.projection,
        )

    def net(self, net: Net, setting: Setting) -> Net:
        if not self.projection:
            return net
        widths = [net.head.in_features, *self.projection]
        layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())][:-1]
        if self.representation == "body":
            return Net(net.body, ProjectingHead(nn.Sequential(*layers), widths[0], widths[-1], setting.classes))
        return Net(nn.Sequential(net.body, *layers), nn.Linear(widths[-1], setting.classes))

    def init(
        self, params: Mapping[str, Tensor], shared: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> tuple[Tree, Tree]:
        if self.previous == "untrained":
            params = tree_map(_shuffled, params)
        return {}, {**params, **buffers}

    @property
    def init_per_client(self) -> bool:
        return self.previous == "untrained"

    def penalty(self, step: Step) -> Tensor:
        mine = self._compared(step.features, step.params)
        near = self._compared(step.apply(step.start)[0], step.start)
        far = self._compared(step.apply(step.client, {})[0], step.client)
        others = torch.stack([near, far], 1)  # [B, 2, d]
        similarity = F.cosine_similarity(mine[:, None], others, dim=2) / self.temperature
        return self.mu * F.cross_entropy(similarity, torch.zeros_like(step.y))

    def _compared(self, features: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Return the representations to compare, [B, d]: projected, unless they already are."""
        if self.representation == "body":
            for number in range(len(self.projection)):
                layer = f"head.projection.{2 * number}"
                features = F.linear(
                    features.relu() if number else features, weights[f"{layer}.weight"], weights[f"{layer}.bias"]
                )
        return features

    @property
    def excludes(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("spherefed", "babu") if self.representation == "body" else ()

    def client_end(self, delta: Tree, local: Local) -> tuple[Tree, Tree, Tree]:
        return delta, {}, {**local.params, **local.buffers}
