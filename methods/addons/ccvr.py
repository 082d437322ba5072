"""CCVR."""

from collections.abc import Mapping
from typing import Annotated

import torch
from torch import Tensor

from fedspan.benchmark.component import addon
from fedspan.benchmark.errors import require
from fedspan.benchmark.head import HeadTraining
from fedspan.benchmark.search import choice, fixed
from fedspan.benchmark.tree import Tree, root


@addon("ccvr")
class CCVR(HeadTraining):
    """Luo et al. 2021 (NeurIPS), Algorithm 1: fine-tune the head on virtual features drawn from a Gaussian per class.

    For each class, clients send the number of images, and the sums of features and of their outer products. The server
    computes the pooled mean and unbiased covariance, draws `per_class` virtual features of each class that any client
    holds, however many images it has, and trains the head on them by SGD with cross-entropy. A class with one image has
    covariance 0.

    `tukey` is the exponent of Tukey's ladder of powers, sign(z)|z|^tukey (1: no transform). The Gaussians are fitted to
    transformed features; virtual features are transformed back, because the head reads untransformed ones (the sources
    do not say where the transform is undone). SphereFed 2022, Table 1 lists the transform beside the sampling on the
    server, without an exponent; Table 16 (App. F) lists 500 virtual features per class (TinyImageNet: 1000) and a
    learning rate of 1e-5, but neither optimiser nor epochs. On the digits that rate moves the head by up to 0.5% of its
    length and changes no accuracy (measured in docs/methods.md), so the default `lr` is larger.
    """

    title = "CCVR"
    summary = "After training, the server tunes the head on virtual features drawn from a Gaussian per class."
    papers = ("luo2021",)
    wording = {"per_class": "{:,} features per class"}

    per_class: Annotated[int, fixed("500 in SphereFed 2022, App. F; it sets the compute")] = 500
    tukey: Annotated[float, choice(0.5, 1.0, source="ours: the square root, or none")] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.per_class >= 1, "addon.ccvr.per_class", "must be at least 1", self.per_class)
        require(self.tukey > 0, "addon.ccvr.tukey", "must be positive", self.tukey)

    def stats(self, features: Tensor, labels: Tensor, classes: int) -> Tree:
        z = signed_power(features, self.tukey)
        d = z.shape[1]
        n, total, products = z.new_zeros(classes), z.new_zeros(classes, d), z.new_zeros(classes, d, d)
        for c in range(classes):
            of_class = z[labels == c]
            n[c], total[c] = len(of_class), of_class.sum(0)
            products[c] = of_class.T @ of_class
        return {"n": n, "z": total, "zz": products}

    def calibration_cost(self, images: int, clients: int, features: int, classes: int) -> tuple[int, int]:
        """Return (numbers, FLOPs): count, sum and outer products per class; outer products, draws and the fit."""
        virtual = self.per_class * classes
        numbers = classes * (1 + features + features**2)
        return clients * numbers, 2 * (images + virtual) * features**2 + self.fit_flops(virtual, features, classes)

    def calibrate(self, params: Mapping[str, Tensor], sums: Mapping[str, Tensor], rng: torch.Generator) -> Tree:
        features, labels = [], []
        for c in sums["n"].nonzero().flatten().tolist():
            mean, covariance = moments(sums["n"][c], sums["z"][c], sums["zz"][c])
            virtual = draw_gaussian(mean, covariance, self.per_class, rng)
            features.append(signed_power(virtual, 1 / self.tukey))
            labels += self.per_class * [c]
        return self.fit(params, torch.cat(features), torch.tensor(labels, device=features[0].device), "ce", rng)


def signed_power(z: Tensor, exponent: float) -> Tensor:
    """Return sign(z) |z|^exponent."""
    return z if exponent == 1 else z.sign() * z.abs() ** exponent


def moments(n: Tensor, total: Tensor, products: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean [d] and unbiased covariance [d, d] of n vectors from their sum and sum of outer products."""
    mean = total / n
    return mean, (products - n * torch.outer(mean, mean)) / (n - 1).clamp_min(1)


def draw_gaussian(mean: Tensor, covariance: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Return [count, d] draws; the covariance may be singular, and eigenvalues rounded below 0 are taken as 0."""
    values, vectors = torch.linalg.eigh(covariance)
    noise = torch.randn(count, len(mean), generator=rng, dtype=mean.dtype).to(mean.device)
    return mean + (noise * root(values.clamp_min(0))) @ vectors.T
