"""FedDecorr 2023, Theorem 1: how fast the singular values of a linear network's representation grow.

Gradient descent with steps of 1e-5 from weights that keep the theorem's assumptions; rates are compared at thirty
points on the way, relative to the largest of them. Tolerance: 1 percent.
"""

import itertools

import numpy as np
import pytest

from tests.theory.linear_network import (
    balanced,
    class_mean_pull,
    growth,
    product,
    pull,
    samples,
    singular_values,
    step,
    trajectory,
)

RATE, STEPS, EVERY, TOLERANCE = 1e-5, 1500, 50, 0.01
INPUTS, CLASSES, SIGMA = 6, 5, np.array([1.2, 0.9, 0.6, 0.4])
networks = pytest.mark.parametrize(("layers", "m"), [(1, 0.5), (2, 0.5), (3, 0.0), (3, 1.0)])


def path(layers, m, scatter):
    """Yield (weights, weights a step later, data) at points of a training run."""
    rng = np.random.default_rng(0)
    weights = balanced(rng, INPUTS, CLASSES, layers, SIGMA, m)
    data = samples(rng, INPUTS, CLASSES, CLASSES, 8, scatter)
    for number in range(STEPS):
        moved = step(weights, data, RATE)
        if number % EVERY == 0:
            yield weights, moved, data
        weights = moved


def deviation(layers, m, scatter, gradient):
    """Return the largest relative deviation of the theorem's rates from those of the network."""
    worst = 0.0
    for weights, moved, data in path(layers, m, scatter):
        measured = (singular_values(moved) - singular_values(weights)) / RATE
        expected = growth(weights, gradient(weights, data), data.x.shape[1], m)
        worst = max(worst, np.abs(measured - expected).max() / np.abs(expected).max())
    return worst


@networks
def test_the_start_keeps_both_assumptions_and_so_does_training(layers, m):
    for weights, _, _ in path(layers, m, 0.3):
        *first, last = weights
        for w, after in itertools.pairwise(first):
            np.testing.assert_allclose(after.T @ after, w @ w.T, atol=1e-3)
        u, v = np.linalg.svd(product(first))[0], np.linalg.svd(last)[2].T
        np.testing.assert_allclose(np.abs(u.T @ v), np.eye(len(SIGMA)), atol=1e-3)


@networks
def test_the_classifiers_singular_values_follow_those_of_the_representation(layers, m):
    """Eq. 43."""
    for weights, _, _ in path(layers, m, 0.3):
        last = np.linalg.svd(weights[-1], compute_uv=False)
        np.testing.assert_allclose(last**2, singular_values(weights) ** (2 / layers) + m, rtol=1e-3)


@networks
def test_singular_values_grow_at_the_rate_of_the_theorem(layers, m):
    """With one input per class, the printed form and the exact gradient are the same."""
    assert deviation(layers, m, 0.0, class_mean_pull) < TOLERANCE


@networks
def test_with_different_inputs_in_a_class_the_rate_follows_the_whole_gradient(layers, m):
    """Eq. 44."""
    assert deviation(layers, m, 0.3, pull) < TOLERANCE


@networks
def test_with_different_inputs_in_a_class_the_printed_rate_is_an_approximation(layers, m):
    """Eq. 45 takes the mean of products of errors and inputs for the product of their means."""
    near, far = (deviation(layers, m, scatter, class_mean_pull) for scatter in (0.15, 0.3))
    assert TOLERANCE < near < far


@pytest.mark.parametrize("layers", [1, 2])
def test_with_fewer_classes_fewer_singular_values_grow(layers):
    counts = []
    for present in (8, 4, 2, 1):
        grown = []
        for seed in range(3):
            rng = np.random.default_rng(seed)
            weights = balanced(rng, 10, 8, layers, np.linspace(0.12, 0.1, 8), 0.0)
            values = trajectory(weights, samples(rng, 10, 8, present, 48 // present), 2e-3, 750, every=750)
            grown.append(int((values[-1] > 3 * values[0]).sum()))
        assert max(grown) <= present
        counts.append(np.mean(grown))
    assert counts == sorted(counts, reverse=True)
    assert len(set(counts)) == 4
