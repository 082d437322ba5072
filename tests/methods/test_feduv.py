import numpy as np
import pytest
import torch

from fedspan.methods.addons.feduv import FedUV, lack_of_uniformity, lack_of_variance
from fedspan.methods.algorithms.fedavg import FedAvg
from tests.helpers import start, toy_cell
from tests.methods.by_hand import PLAIN, agree, federated, finished, plain_gradient, softmax, trained_by_hand


def uniformity_slope(z):
    """Return the gradient in features [n, d] of the mean potential, sigma a function of them too."""
    pairs = [(i, j) for i in range(len(z)) for j in range(i + 1, len(z))]
    squared = np.array([((z[i] - z[j]) ** 2).sum() for i, j in pairs])
    other = np.sort(squared[squared > 0])
    sigma = other[(len(other) - 1) // 2]  # the lower of two middle ones
    middle = pairs[int(np.flatnonzero(squared == sigma)[0])]
    potential = np.exp(-squared / sigma)
    slope = np.zeros_like(z)
    for (i, j), p in zip(pairs, -potential / sigma / len(pairs), strict=True):
        slope[i] += p * 2 * (z[i] - z[j])
        slope[j] -= p * 2 * (z[i] - z[j])
    by_sigma = (potential * squared).sum() / sigma**2 / len(pairs)
    i, j = middle
    slope[i] += by_sigma * 2 * (z[i] - z[j])
    slope[j] -= by_sigma * 2 * (z[i] - z[j])
    return slope


def variance_slope(logits):
    """Return the gradient in logits [n, C] of the mean lack of standard deviation of the probabilities."""
    n, classes = logits.shape
    p = softmax(logits)
    deviation = p.std(0, ddof=1)
    lacks = deviation < 1 / np.sqrt(classes)
    in_p = -(p - p.mean(0)) / (n - 1) / deviation * lacks / classes
    return p * (in_p - (p * in_p).sum(1, keepdims=True))


@pytest.mark.parametrize(("lam", "mu"), [(2.5, 0.5), (0.0, 2.0), (3.0, 0.0)])
def test_all_rounds_regularise_probabilities_and_features(lam, mu):
    run = start(toy_cell(FedAvg(), FedUV(lam=lam, mu=mu), participation=0.5, protocol={"precision": "float64"}))

    def gradient(w, x, y):
        g = plain_gradient(w, x, y)
        if len(y) < 2:
            return g
        regular = PLAIN.gradient(
            w, x, lam * variance_slope(PLAIN.logits(w, x)), mu * uniformity_slope(PLAIN.features(w, x))
        )
        return {path: g[path] + regular[path] for path in g}

    expected = federated(run, lambda w, client, round: trained_by_hand(run, w, client, round, gradient)[0])
    agree(finished(run).state.params, expected)


def test_one_hot_probabilities_lack_no_variance_and_equal_ones_all_of_it():
    classes = 4
    assert lack_of_variance(1e3 * torch.eye(classes, dtype=torch.float64)).item() == pytest.approx(0, abs=1e-9)
    assert lack_of_variance(torch.ones(7, classes, dtype=torch.float64)).item() == 0.5


@pytest.mark.parametrize("behind", [10.0, 30.0, 45.0])
def test_a_class_that_a_client_never_sees_leaves_the_slope_finite(behind):
    torch.manual_seed(0)
    logits = torch.randn(16, 10)
    logits[:, 9] -= behind
    logits.requires_grad_()
    lack_of_variance(logits).backward()
    np.testing.assert_allclose(logits.grad, variance_slope(logits.detach().double().numpy()), atol=1e-7)


def test_the_potential_depends_on_no_scale_and_falls_as_two_clusters_spread():
    clusters = torch.tensor([[0.0, 0], [0, 0.1], [5, 5], [5, 5.1]], dtype=torch.float64)
    spread = torch.tensor([[0.0, 0], [0, 2], [5, 5], [5, 7]], dtype=torch.float64)
    assert lack_of_uniformity(spread) < lack_of_uniformity(clusters)
    torch.testing.assert_close(lack_of_uniformity(spread), lack_of_uniformity(100 * spread))


def test_equal_features_have_a_finite_term_without_a_slope():
    features = torch.ones(5, 3, dtype=torch.float64, requires_grad=True)
    potential = lack_of_uniformity(features)
    potential.backward()
    assert potential.item() == 1.0
    assert features.grad.abs().max() == 0.0


def test_equal_logits_have_a_finite_slope():
    logits = torch.zeros(5, 3, dtype=torch.float64, requires_grad=True)
    lack_of_variance(logits).backward()
    assert logits.grad.isfinite().all()
