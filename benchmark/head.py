"""The classifier head: its weights, and two ways to fit it to given features (least squares and SGD)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedspan.benchmark.component import Component
from fedspan.benchmark.errors import require
from fedspan.benchmark.net import one_hot
from fedspan.benchmark.search import fixed, log
from fedspan.benchmark.sgd import SGD
from fedspan.benchmark.tree import Tree

Criterion = Literal["ce", "mse"]

WEIGHT, BIAS = "head.weight", "head.bias"


def in_head(path: str) -> bool:
    """Return whether a weight belongs to the classifier head."""
    return path.startswith("head.")


def criterion(name: Criterion, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss of a batch: cross-entropy, or the squared error to one-hot labels averaged over classes."""
    if name == "mse":
        return F.mse_loss(logits, one_hot(labels, logits.shape[1], logits.dtype))
    return F.cross_entropy(logits, labels)


def normal_equations(features: Tensor, labels: Tensor, classes: int) -> Tree:
    """Return Z'Z [d, d] and Z'Y [d, classes] of features Z [n, d] and one-hot labels Y; both add up over clients."""
    return {"zz": features.T @ features, "zy": features.T @ one_hot(labels, classes, features.dtype)}


def least_squares(params: Mapping[str, Tensor], zz: Tensor, zy: Tensor, ridge: float) -> Tree:
    """Return `params` with the head W = ((Z'Z + ridge I)^-1 Z'Y)' and bias 0 (if any), solved in float64.

    If Z'Z + ridge I is singular up to rounding (dead features, fewer images than dimensions), its pseudo-inverse gives
    the least-squares head of smallest norm.
    """
    values, vectors = torch.linalg.eigh(zz.double() + ridge * torch.eye(len(zz), dtype=torch.float64, device=zz.device))
    noise = len(zz) * torch.finfo(torch.float64).eps * values[-1]
    inverse = torch.where(values > noise, 1 / values, 0.0)
    head = (vectors * inverse) @ (vectors.T @ zy.double())
    return _with_head(params, head.T)


def least_squares_flops(features: int, classes: int) -> int:
    """Return the FLOPs of the matrix products in `least_squares`."""
    return 4 * features**2 * classes


def _with_head(params: Mapping[str, Tensor], weight: Tensor) -> Tree:
    head = {WEIGHT: weight.to(params[WEIGHT])}
    if BIAS in params:
        head[BIAS] = torch.zeros_like(params[BIAS])
    return {**params, **head}


@dataclass(frozen=True)
class HeadTraining(Component):
    """Base of components that fine-tune the head by SGD on given features, after training."""

    epochs: Annotated[int, fixed("it sets the compute")] = 10
    lr: Annotated[float, log(1e-5, 1e-1, source="ours, from the 1e-5 of SphereFed 2022, Table 16, upwards")] = 0.01
    momentum: Annotated[float, fixed("that of the protocols")] = 0.9
    batch_size: Annotated[int, fixed("it sets the compute")] = 64

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            require(getattr(self, name) >= 1, f"addon.{self.name}.{name}", "must be at least 1", getattr(self, name))
        require(self.lr > 0, f"addon.{self.name}.lr", "must be positive", self.lr)
        require(0 <= self.momentum < 1, f"addon.{self.name}.momentum", "must lie in [0, 1)", self.momentum)

    def fit_flops(self, images: int, features: int, classes: int) -> int:
        """Return the FLOPs of `fit`: logits and weight gradients."""
        return 4 * self.epochs * images * features * classes

    def fit(
        self,
        params: Mapping[str, Tensor],
        features: Tensor,
        labels: Tensor,
        loss: Criterion,
        rng: torch.Generator,
        lr: float | None = None,
    ) -> Tree:
        """Return `params` with the head trained on features [n, d] and labels [n], with learning rate `lr` if given."""
        head = {path: leaf.detach().clone().requires_grad_() for path, leaf in params.items() if in_head(path)}
        features = features.detach().to(head[WEIGHT])
        optimiser = SGD(list(head.values()), self.lr if lr is None else lr, self.momentum, 0.0)
        with torch.enable_grad():
            for _ in range(self.epochs):
                order = torch.randperm(len(labels), generator=rng).to(labels.device)
                for batch in order.split(self.batch_size):
                    logits = F.linear(features[batch], head[WEIGHT], head.get(BIAS))
                    criterion(loss, logits, labels[batch]).backward()
                    optimiser.step()
        return {**params, **{path: leaf.detach() for path, leaf in head.items()}}
