import numpy as np
import pytest
import torch

from benchmark.diagnostics import Diagnostics, covariance, effective_rank, gap, singular_values, summary
from benchmark.errors import UserError
from tests.helpers import NormNet, toy_cell, trained


def features(n=40, d=6, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + rng.normal(size=d)


@pytest.mark.parametrize("batch", [1, 7, 40])
def test_the_covariance_is_numpys_however_it_is_batched(batch):
    z = features()
    ours = covariance(torch.from_numpy(z).split(batch)).numpy()
    np.testing.assert_allclose(ours, np.cov(z, rowvar=False, bias=True), atol=1e-12)


def test_the_spectrum_is_that_of_a_singular_value_decomposition_largest_first():
    z = features()
    ours = singular_values(covariance([torch.from_numpy(z)]))
    expected = np.linalg.svd(z - z.mean(0), compute_uv=False) ** 2 / len(z)
    np.testing.assert_allclose(ours, expected, rtol=1e-9)


def test_fewer_images_than_dimensions_leave_zeros_never_negative_noise():
    values = singular_values(covariance([torch.from_numpy(features(4, 9))]))
    assert values.min() >= 0
    assert (values > 1e-9).sum() == 3


def test_no_features_are_an_error():
    with pytest.raises(ValueError, match="no features"):
        covariance([])


@pytest.mark.parametrize("d", [1, 5, 64])
def test_the_effective_rank_of_the_identity_is_its_dimension(d):
    assert effective_rank(singular_values(torch.eye(d, dtype=torch.float64))) == pytest.approx(d)


def test_the_effective_rank_is_the_exponential_of_the_entropy():
    values = np.array([6.0, 3.0, 1.0, 0.0])
    p = np.array([0.6, 0.3, 0.1])
    assert effective_rank(values) == pytest.approx(np.exp(-(p * np.log(p)).sum()))
    assert effective_rank(np.array([7.0, 0.0])) == pytest.approx(1)
    assert effective_rank(np.zeros(3)) == 0


def test_the_gap_is_the_mean_log_ratio():
    local, globe = np.array([8.0, 2.0, 0.5]), np.array([4.0, 4.0, 1.0])
    assert gap(local, globe) == pytest.approx(np.mean([np.log(2), -np.log(2), -np.log(2)]))
    assert gap(local, local) == 0
    assert gap(globe, local) == pytest.approx(-gap(local, globe))


def test_the_gap_stays_finite_where_dimensions_are_dead():
    assert np.isfinite(gap(np.array([1.0, 0.0]), np.array([1.0, 1e-3])))
    assert gap(np.zeros(2), np.zeros(2)) == 0


def test_a_summary_keeps_the_top_and_counts_what_is_above_the_threshold():
    values = np.array([3.0, 0.2, np.exp(-2) * 1.01, np.exp(-2) * 0.99, 0.0])
    kept = summary(values, Diagnostics(top=2))
    assert kept["singular_values"] == [3.0, 0.2]
    assert (kept["dimension"], kept["significant"]) == (5, 3)
    assert summary(values, Diagnostics(log_threshold=0.0))["significant"] == 1


def test_at_least_one_value_is_kept():
    with pytest.raises(UserError, match=r"diagnostics\.top must be at least 1, got 0"):
        Diagnostics(top=0)


def test_spectra_of_a_run_are_those_of_its_features():
    settings = Diagnostics(spectra=True, clients=(2, 5), top=3)
    run = trained(toy_cell(model=NormNet(), diagnostics=settings))
    found = run.spectra()
    run.trainer.load(run.state, run.state.first_row)
    data = run.trainer.data
    with torch.no_grad():
        z = run.trainer.net.eval()(data.normalise(data.test.x))[0].double().numpy()
    values = np.linalg.svd(z - z.mean(0), compute_uv=False) ** 2 / len(z)
    np.testing.assert_allclose(found["global"]["singular_values"], values[:3], rtol=1e-4)
    assert set(found["local"]) == set(found["gap"]) == {"2", "5"}
    assert found["local"]["2"] != found["local"]["5"] != found["global"]


def test_a_single_clients_local_model_is_the_global_one_so_its_gap_is_zero():
    settings = Diagnostics(spectra=True, clients=(0,))
    found = trained(toy_cell(clients=1, diagnostics=settings, protocol={"precision": "float64"})).spectra()
    assert found["gap"]["0"] == pytest.approx(0, abs=1e-6)


def test_a_client_that_does_not_train_last_is_refused_before_anything_runs():
    cell = toy_cell(diagnostics=Diagnostics(spectra=True, clients=(6,)))
    with pytest.raises(UserError, match="client 6, which does not train in the last round"):
        trained(cell)
