"""FedDecorr against formulae written in NumPy float64; N images, d dimensions."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedspan.benchmark.errors import UserError
from fedspan.methods.addons.feddecorr import FedDecorr

# Batch size and dimension of the papers' nets: MobileNetV2, ResNet18, MOON's head, ResNet32, short last batches.
TABLE = [(64, 1280), (64, 512), (64, 256), (64, 64), (16, 1280), (8, 1280)]
RATIOS = [62.06, 62.14, 62.26, 63.00, 14.07, 6.13]
SIZES = [*TABLE, (64, 16), (2, 3), (5, 2)]
sizes = pytest.mark.parametrize(("n", "d"), SIZES)


def representations(n, d):
    rng = np.random.default_rng(n * 10_000 + d)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) / np.sqrt(d) + rng.normal(size=d)


def penalty(z, **settings):
    return FedDecorr(**settings).penalty(SimpleNamespace(features=z))


def value(z, **settings):
    return penalty(torch.from_numpy(z), **settings).item()


def gradient(z, **settings):
    z = torch.from_numpy(z).requires_grad_()
    penalty(z, **settings).backward()
    return z.grad.numpy()


def correlation(z):
    return np.corrcoef(z, rowvar=False)


@sizes
def test_the_papers_form_is_the_mean_square_of_the_correlation_matrix(n, d):
    z = representations(n, d)
    assert value(z, form="paper", beta=0.3) == pytest.approx(0.3 * np.mean(correlation(z) ** 2), rel=1e-6)


@sizes
def test_the_pseudocode_divides_once_by_n_and_once_by_n_minus_1(n, d):
    z = representations(n, d)
    standard = (z - z.mean(0)) / z.std(0, ddof=1)
    expected = 0.3 * np.sum((standard.T @ standard / n) ** 2) / d**2
    assert value(z, form="pseudocode", beta=0.3) == pytest.approx(expected, rel=1e-6)
    assert value(z, form="pseudocode") == pytest.approx(((n - 1) / n) ** 2 * value(z, form="paper"), rel=1e-9)


@sizes
def test_the_released_form_is_the_scaled_off_diagonal(n, d):
    z = representations(n, d)
    k = (n - 1) * correlation(z)
    off_diagonal = k[~np.eye(d, dtype=bool)].reshape(d, d - 1)
    assert value(z, form="released", beta=0.3) == pytest.approx(0.3 * np.mean(off_diagonal**2) / n, rel=1e-6)


@sizes
def test_the_released_form_is_the_pseudocodes_off_diagonal_up_to_a_constant(n, d):
    z = representations(n, d)
    standard = (z - z.mean(0)) / z.std(0, ddof=1)
    pseudocode = (standard.T @ standard / n) ** 2 / d**2
    off_diagonal = pseudocode.sum() - np.trace(pseudocode)
    assert value(z, form="released", beta=1.0) == pytest.approx(n * d / (d - 1) * off_diagonal, rel=1e-6)


@sizes
def test_the_gradients_are_parallel_with_the_derived_ratio(n, d):
    z = representations(n, d)
    released, paper = (gradient(z, form=form) for form in ("released", "paper"))
    ratio = (n - 1) ** 2 / n * d / (d - 1)
    scale = np.abs(released).max()
    if n == 2:  # two standardised images are +-1/sqrt(2) whatever they were: no gradient at all
        assert scale < 1e-5
        return
    np.testing.assert_allclose(released / scale, ratio * paper / scale, atol=1e-6)
    assert np.vdot(released, paper) / np.vdot(paper, paper) == pytest.approx(ratio, rel=1e-6)


@pytest.mark.parametrize(("size", "ratio"), list(zip(TABLE, RATIOS, strict=True)))
def test_the_ratio_at_the_papers_sizes(size, ratio):
    z = representations(*size)
    released, paper = (gradient(z, form=form) for form in ("released", "paper"))
    assert np.linalg.norm(released) / np.linalg.norm(paper) == pytest.approx(ratio, abs=0.006)


@pytest.mark.parametrize("form", ["released", "paper"])
def test_a_batch_of_one_image_gives_zero(form):
    z = representations(1, 8)
    assert value(z, form=form) == 0
    assert not gradient(z, form=form).any()


@pytest.mark.parametrize("form", ["released", "paper", "pseudocode"])
def test_a_single_dimension_gives_zero(form):
    assert value(representations(5, 1), form=form) == 0


@pytest.mark.parametrize("form", ["released", "paper"])
@pytest.mark.parametrize("n", [4, 32])
def test_a_constant_dimension_adds_nothing_and_keeps_the_gradient_finite(form, n):
    z = representations(n, 6)
    with_constant = np.insert(z, 3, 0.7, axis=1)
    pairs = {"released": (6 * 5, 7 * 6), "paper": (36, 49)}[form]
    assert value(with_constant, form=form) == pytest.approx(value(z, form=form) * pairs[0] / pairs[1], rel=1e-6)
    assert np.isfinite(gradient(with_constant, form=form)).all()


@pytest.mark.parametrize("form", ["released", "paper"])
def test_a_dimension_that_hardly_varies_is_damped_as_in_the_released_code(form):
    n, d = 5, 4
    z = representations(n, d) * [1, 1e-4, 1, 1]  # 1e-8 stands beside the second's unbiased variance of that size
    standard = (z - z.mean(0)) / np.sqrt(z.var(0, ddof=1) + 1e-8)
    squares = (standard.T @ standard) ** 2
    off_diagonal = (squares.sum() - np.trace(squares)) / (d * (d - 1) * n)
    expected = {"paper": squares.sum() / ((n - 1) * d) ** 2, "released": off_diagonal}[form]
    assert value(z, form=form, beta=1.0) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("form", ["released", "paper"])
def test_it_does_not_see_shift_scale_or_order(form):
    z = representations(20, 6)
    rng = np.random.default_rng(0)
    moved = (z * rng.uniform(1, 3, 6) + rng.normal(size=6))[rng.permutation(20)]
    assert value(moved, form=form) == pytest.approx(value(z, form=form), rel=1e-6)


@pytest.mark.parametrize("form", ["released", "paper"])
def test_a_step_against_the_gradient_decorrelates(form):
    z = representations(64, 8)
    g = gradient(z, form=form)
    assert value(z - 1e-3 * g / np.abs(g).max(), form=form) < value(z, form=form)


def test_float32_is_close_to_float64():
    z = representations(64, 256)
    exact = value(z)
    assert penalty(torch.from_numpy(z).float()).item() == pytest.approx(exact, rel=1e-4)


def test_a_negative_coefficient_is_refused():
    with pytest.raises(UserError, match=r"addon\.feddecorr\.beta must not be negative, got -0\.1"):
        FedDecorr(beta=-0.1)
