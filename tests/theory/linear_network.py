"""Gradient descent of the deep linear network of FedDecorr 2023, Sec. 3.3, in NumPy float64.

Sizes: L layers [d, d] (the first [d, inputs]) and a classifier [C, d], N samples [inputs, N].
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Samples:
    """One client's data: `x` [inputs, N], `y` one-hot [C, N]."""

    x: np.ndarray
    y: np.ndarray


def samples(
    rng: np.random.Generator, inputs: int, classes: int, present: int, each: int, scatter: float = 0.3
) -> Samples:
    """Return `each` samples of the first `present` classes, scattered around a random centre per class."""
    labels = np.repeat(np.arange(present), each)
    centres = rng.normal(size=(inputs, classes))
    return Samples(centres[:, labels] + scatter * rng.normal(size=(inputs, len(labels))), np.eye(classes)[:, labels])


def orthonormal(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return a matrix [rows, columns] with orthonormal columns."""
    return np.linalg.qr(rng.normal(size=(rows, columns)))[0]


def balanced(
    rng: np.random.Generator, inputs: int, classes: int, layers: int, sigma: np.ndarray, m: float
) -> list[np.ndarray]:
    """Return weights that keep the theorem's assumptions for all time; `sigma` [d] are the product's singular values.

    Assumption 1 says W_{i+1}' W_{i+1} = W_i W_i' of the first layers. Assumption 2 says that the product's left
    singular vectors are the classifier's right ones; it stays true if W_{L+1}' W_{L+1} - W_L W_L' = m I, which
    gradient flow conserves.
    """
    d = len(sigma)
    root = sigma ** (1 / layers)
    sides = [orthonormal(rng, inputs, d), *(orthonormal(rng, d, d) for _ in range(layers))]
    weights = [out * root @ into.T for into, out in itertools.pairwise(sides)]
    return [*weights, orthonormal(rng, classes, d) * np.sqrt(root**2 + m) @ sides[-1].T]


def product(weights: list[np.ndarray]) -> np.ndarray:
    """Return the product of the layers, the last one leftmost; the identity of none."""
    result = weights[0]
    for w in weights[1:]:
        result = w @ result
    return result


def errors(weights: list[np.ndarray], data: Samples) -> np.ndarray:
    """Return labels minus softmax outputs, [C, N]."""
    logits = product(weights) @ data.x
    e = np.exp(logits - logits.max(0))
    return data.y - e / e.sum(0)


def step(weights: list[np.ndarray], data: Samples, rate: float) -> list[np.ndarray]:
    """Return the weights after one step on the summed cross-entropy (Eq. 35)."""
    end = errors(weights, data) @ data.x.T
    moved = []
    for i, w in enumerate(weights):
        before = product(weights[:i]) if i else np.eye(w.shape[1])
        after = product(weights[i + 1 :]) if i + 1 < len(weights) else np.eye(len(w))
        moved.append(w + rate * after.T @ end @ before.T)
    return moved


def pull(weights: list[np.ndarray], data: Samples) -> np.ndarray:
    """Return (y - gamma) X' / N [C, inputs], what Eq. 44 contains."""
    return errors(weights, data) @ data.x.T / data.x.shape[1]


def class_mean_pull(weights: list[np.ndarray], data: Samples) -> np.ndarray:
    """Return G [C, inputs] as Eq. 33 writes it, from class means of errors and of inputs."""
    error, g = errors(weights, data), np.zeros((len(data.y), len(data.x)))
    for c in range(len(data.y)):
        of_class = data.y[c] == 1
        if of_class.any():
            g += of_class.mean() * np.outer(error[:, of_class].mean(1), data.x[:, of_class].mean(1))
    return g


def growth(weights: list[np.ndarray], g: np.ndarray, n: int, m: float) -> np.ndarray:
    """Return the theorem's rate of each singular value of the product of the first layers (Eq. 32), [d]."""
    *first, last = weights
    layers = len(first)
    u, sigma, vt = np.linalg.svd(product(first), full_matrices=False)
    # The classifier's left singular vector to each right one; the sign is the one that makes the pair positive.
    left = last @ u / np.linalg.norm(last @ u, axis=0)
    along = np.einsum("ck,ci,ki->k", left, g, vt)
    return n * layers * sigma ** (2 - 2 / layers) * np.sqrt(sigma ** (2 / layers) + m) * along


def singular_values(weights: list[np.ndarray]) -> np.ndarray:
    """Return those of the product of the first layers, largest first, [d]."""
    return np.linalg.svd(product(weights[:-1]), compute_uv=False)


def trajectory(weights: list[np.ndarray], data: Samples, rate: float, steps: int, every: int = 1) -> np.ndarray:
    """Return the singular values before training and after every so many steps, [points, d]."""
    points = [singular_values(weights)]
    for number in range(1, steps + 1):
        weights = step(weights, data, rate)
        if number % every == 0:
            points.append(singular_values(weights))
    return np.array(points)
