"""DeCov and structured DeCov against covariances written in NumPy float64; N images, d dimensions."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedspan.benchmark.errors import Incompatible, UserError
from fedspan.methods.addons.decov import DeCov
from fedspan.methods.addons.structured_decov import StructuredDeCov
from tests.helpers import start, toy_cell
from tests.toys import PlainNet

sizes = pytest.mark.parametrize(("n", "d"), [(64, 8), (5, 12), (2, 4), (7, 7)])


def representations(n, d):
    rng = np.random.default_rng(n * 100 + d)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + rng.normal(size=d)


def penalty(component, z):
    return component.penalty(SimpleNamespace(features=z))


def value(component, z):
    return penalty(component, torch.from_numpy(z)).item()


def gradient(component, z):
    z = torch.from_numpy(z).requires_grad_()
    penalty(component, z).backward()
    return z.grad.numpy()


def penalised(d, groups):
    """Return [d, d]: 1 for pairs of features that may not vary together."""
    group = np.concatenate([np.full(len(part), g) for g, part in enumerate(np.array_split(np.arange(d), groups))])
    return (group[:, None] != group[None, :]).astype(float)


@sizes
@pytest.mark.parametrize("groups", ["each its own", 2, 3])
def test_it_is_half_the_squared_covariance_of_the_penalised_pairs(n, d, groups):
    component = DeCov(beta=0.3) if groups == "each its own" else StructuredDeCov(beta=0.3, groups=groups)
    mask = penalised(d, d if groups == "each its own" else groups)
    z = representations(n, d)
    c = np.cov(z, rowvar=False, bias=True)
    assert value(component, z) == pytest.approx(0.3 / 2 * (mask * c**2).sum(), rel=1e-10)
    expected = 0.3 * 2 / n * (z - z.mean(0)) @ (mask * c)
    np.testing.assert_allclose(gradient(component, z), expected, rtol=0, atol=1e-10 * np.abs(expected).max())


@sizes
def test_one_feature_per_group_is_decov(n, d):
    z = representations(n, d)
    assert value(StructuredDeCov(groups=d), z) == pytest.approx(value(DeCov(), z), rel=1e-12)


@pytest.mark.parametrize("component", [DeCov(), StructuredDeCov(groups=2)], ids=["decov", "structured_decov"])
def test_one_image_gives_zero_and_no_gradient(component):
    z = representations(1, 6)
    assert value(component, z) == 0
    assert not gradient(component, z).any()


def test_only_covariance_between_groups_counts():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 50, 1))
    z = np.hstack([a, 2 * a, b - b.mean(), b]) - np.hstack([a, a, b, b]).mean(0)
    z[:, 2:] -= a @ (np.linalg.pinv(a) @ z[:, 2:])  # no covariance between the two groups left
    z -= z.mean(0)
    independent = value(StructuredDeCov(groups=2), np.hstack([z[:, :2], z[:, 2:]]))
    assert independent < 1e-3 * value(DeCov(), z)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DeCov(beta=-1.0), r"addon\.decov\.beta must not be negative, got -1\.0"),
        (lambda: StructuredDeCov(beta=-1.0), r"addon\.structured_decov\.beta must not be negative, got -1\.0"),
        (lambda: StructuredDeCov(groups=1), r"addon\.structured_decov\.groups must be at least 2, got 1"),
    ],
)
def test_settings_outside_their_domain_are_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_more_groups_than_features_are_impossible():
    with pytest.raises(Incompatible, match="'structured_decov' cannot make 6 groups of 5 features"):
        start(toy_cell(None, StructuredDeCov(groups=6), model=PlainNet(width=5)))
