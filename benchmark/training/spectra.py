"""Dimensional collapse: spectrum of the representations' covariance (FedDecorr 2023, Sec. 3.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.spec.diagnostics import Diagnostics


def covariance(features: Iterable[Tensor]) -> Tensor:
    """Return the float64 covariance [d, d] over the rows of all batches, normalised by their number."""
    n, total, products = 0, None, None
    for batch in features:
        z = batch.double()
        n += len(z)
        total = z.sum(0) if total is None else total + z.sum(0)
        products = z.T @ z if products is None else products + z.T @ z
    if total is None or products is None:
        raise ValueError("no features")
    mean = total / n
    return products / n - torch.outer(mean, mean)


def singular_values(matrix: Tensor) -> np.ndarray:
    """Return the singular values of a symmetric matrix, largest first, rounding noise clipped at 0."""
    return np.sort(torch.linalg.eigvalsh(matrix).clamp_min(0).cpu().numpy())[::-1].copy()


def effective_rank(values: np.ndarray) -> float:
    """Return exp of the entropy of the normalised singular values (Roy and Vetterli 2007)."""
    total = values.sum()
    if total <= 0:
        return 0.0
    p = values[values > 0] / total
    return math.exp(-math.fsum(p_k * math.log(p_k) for p_k in p))


def gap(local: np.ndarray, globe: np.ndarray) -> float:
    """Return R = mean over k of log(local_k / global_k) (journal FedDecorr, Eq. 1).

    In both spectra, values below 1e-12 of the largest are rounding noise and are clamped to that floor.
    """
    floor = max(1e-12 * max(local[0], globe[0]), 1e-300)
    ratios = np.maximum(local, floor) / np.maximum(globe, floor)
    return math.fsum(map(math.log, ratios)) / len(ratios)


def classifier_alignment(heads: Sequence[Tensor]) -> dict[str, float]:
    """Return the agreement of the clients' classifiers, each [C, d] (SphereFed 2022, Eq. 2 and 3).

    Over all pairs of clients and all classes: the mean `cosine` of the weight vectors and the mean absolute
    `norm_difference` of their lengths. Eq. 3 lacks the absolute value, without which the mean is 0 by symmetry.
    """
    weights = torch.stack([head.double() for head in heads])
    norms = weights.norm(dim=2)
    units = weights / norms.clamp_min(1e-300).unsqueeze(2)
    clients = range(len(heads) - 1)  # each with those after it: all pairs at once would take quadratic memory
    cosines = torch.cat([(units[client] * units[client + 1 :]).sum(2) for client in clients])
    differences = torch.cat([(norms[client] - norms[client + 1 :]).abs() for client in clients])
    return {"cosine": float(cosines.mean()), "norm_difference": float(differences.mean())}


def singular_space_alignment(product: Tensor, head: Tensor) -> Tensor:
    """Return |u_k . v_k'|: left singular vectors u of `product` [d, inputs], right ones v of `head` [C, d].

    Row k' and column k as in FedDecorr 2023, Fig. 6, for the min(C, d, inputs) largest singular values of both.
    """
    count = min(*product.shape, *head.shape)
    u = torch.linalg.svd(product.double(), full_matrices=False).U[:, :count]
    v = torch.linalg.svd(head.double(), full_matrices=False).Vh[:count]
    return (v @ u).abs()


def linear_map(
    body: Callable[[Tensor], Tensor], shape: tuple[int, int, int], dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the matrix [d, pixels] of a linear `body` on images; raise `UserError` if it is not linear."""
    pixels = math.prod(shape)
    basis = torch.eye(pixels, dtype=dtype).reshape(pixels, *shape)
    columns = body(basis).double()
    trial = torch.linspace(-1, 1, pixels, dtype=dtype).reshape(1, *shape)
    expected = trial.reshape(1, -1).double() @ columns
    if not torch.allclose(body(trial).double(), expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max())):
        raise UserError("diagnostics.spaces needs a model whose layers are linear and without bias (model=linear_net)")
    return columns.T


def on_sphere(features: Tensor) -> Tensor:
    """Return unit vectors [n, 3]: the centred features [n, d] projected on their first three principal directions."""
    centred = features.double() - features.double().mean(0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    found = centred @ directions[:3].T
    found = torch.nn.functional.pad(found, (0, 3 - found.shape[1]))
    return found / found.norm(dim=1, keepdim=True).clamp_min(1e-300)


def by_tsne(features: Tensor, seed: int) -> Tensor:
    """Return the t-SNE embedding [n, 2] of features [n, d], started from PCA (van der Maaten and Hinton 2008)."""
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (len(features) - 1) / 3)
    layout = TSNE(n_components=2, init="pca", perplexity=perplexity, random_state=seed % 2**32)
    return torch.from_numpy(layout.fit_transform(features.double().cpu().numpy()))


def summary(values: np.ndarray, settings: Diagnostics) -> dict[str, Any]:
    """Return the summary of one spectrum for a record."""
    return {
        "singular_values": [float(f"{value:.6g}") for value in values[: settings.top]],
        "dimension": len(values),
        "significant": int((values > math.exp(settings.log_threshold)).sum()),
        "effective_rank": effective_rank(values),
    }
