"""Fast federated calibration against least squares on pooled features, in NumPy float64."""

import numpy as np
import pytest
import torch

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.training import stages
from fedspan.benchmark.training.scoring import score_stages
from fedspan.methods.addons.ffc import FFC
from fedspan.methods.algorithms.fedprox import FedProx
from tests.helpers import start, toy_cell, trained, weights
from tests.methods.heads import one_hot, pooled
from tests.toys import NormNet, PlainNet, ServerMomentum

exact = {"precision": "float64"}


def calibrated(run):
    return stages.calibrate(run.trainer, run.state, run.cell.seed)


@pytest.mark.parametrize("model", [PlainNet(), NormNet()], ids=["plain", "batchnorm"])
@pytest.mark.parametrize("base", [None, FedProx(mu=0.1), ServerMomentum()], ids=["fedavg", "fedprox", "momentum"])
def test_sums_over_unequal_clients_give_least_squares_on_pooled_features(model, base):
    """The first client has one image, the last about forty; half of them train in a round."""
    run = trained(toy_cell(base, FFC(), model=model, protocol=exact, participation=0.5))
    z, y = pooled(run)
    assert len(z) == len(run.trainer.data.train)
    expected = np.linalg.lstsq(z, one_hot(y, 3), rcond=None)[0].T
    head = calibrated(run)["head.weight"].numpy()
    np.testing.assert_allclose(head, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


def test_sums_are_float64_where_training_is_float32():
    """Squaring doubles the digits that a difference of features takes: a third feature that is the first and a bit."""
    run = trained(toy_cell(None, FFC()))
    body = run.state.params["body.1.weight"]
    body[2] = body[0] * (1 + 1e-4)
    run.state.params["body.1.bias"][2] = run.state.params["body.1.bias"][0] + 1e-4
    z, y = pooled(run)
    assert run.state.params["head.weight"].dtype == torch.float32
    assert np.linalg.cond(z) > 1e4
    expected = np.linalg.lstsq(z, one_hot(y, 3), rcond=None)[0].T
    head = calibrated(run)["head.weight"].numpy()
    np.testing.assert_allclose(head, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("ridge", [1e-3, 0.1, 10.0])
def test_ridge_is_added_to_the_diagonal_of_the_sum(ridge):
    run = trained(toy_cell(None, FFC(ridge=ridge), protocol=exact))
    z, y = pooled(run)
    expected = np.linalg.solve(z.T @ z + ridge * np.eye(z.shape[1]), z.T @ one_hot(y, 3)).T
    head = calibrated(run)["head.weight"].numpy()
    np.testing.assert_allclose(head, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


def test_the_bias_is_gone_and_the_body_stays():
    run = trained(toy_cell(None, FFC()))
    params = calibrated(run)
    assert run.state.params["head.bias"].any()
    assert not params["head.bias"].any()
    assert all(params[path] is leaf for path, leaf in run.state.params.items() if not path.startswith("head."))


@pytest.mark.parametrize("features", ["fewer images than dimensions", "a dead dimension", "a doubled dimension"])
def test_a_singular_gram_matrix_gives_the_least_squares_head_of_smallest_norm(features):
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(6 if features.startswith("fewer") else 40, 8)), rng.integers(0, 3, 40)
    y = y[: len(z)]
    if features == "a dead dimension":
        z[:, 2] = 0
    if features == "a doubled dimension":
        z[:, 2] = z[:, 5]
    ffc, params = FFC(), {"head.weight": torch.zeros(3, 8, dtype=torch.float64)}
    sums = ffc.stats(torch.from_numpy(z), torch.from_numpy(y), 3)
    head = ffc.calibrate(params, sums, torch.Generator())["head.weight"].numpy()
    expected = (np.linalg.pinv(z) @ one_hot(y, 3)).T
    np.testing.assert_allclose(head, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


def test_no_image_at_all_gives_a_head_of_zeros():
    params = {"head.weight": torch.ones(2, 3)}
    sums = {"zz": torch.zeros(3, 3, dtype=torch.float64), "zy": torch.zeros(3, 2, dtype=torch.float64)}
    assert not FFC().calibrate(params, sums, torch.Generator())["head.weight"].any()


def test_each_client_sends_l_times_l_plus_c_numbers_once():
    run = trained(toy_cell(None, FFC()))
    assert run.meter.calibration_up == 0
    score_stages(run)
    assert run.meter.calibration_up == 6 * 5 * (5 + 3) * 4
    model = sum(leaf.numel() for leaf in run.state.params.values())
    assert run.meter.calibration_down == 6 * model * 4
    assert run.meter.as_dict()["bytes"]["up"] == run.meter.bytes_up + run.meter.calibration_up


def test_forward_passes_of_a_calibration_are_no_evaluation():
    """An image's forward pass through the plain net takes 2 (72 x 5 + 5 x 3) FLOPs."""
    run = trained(toy_cell(None, FFC(every=1), protocol={**exact, "rounds": 3, "eval_every": 3}))
    score_stages(run)
    data, of_an_image = run.trainer.data, 2 * (72 * 5 + 5 * 3)
    assert run.meter.flops["features"] == 3 * len(data.train) * of_an_image
    assert run.meter.flops["evaluate"] == 3 * len(data.test) * of_an_image, "after round 3, trained and calibrated"


def test_calibrating_during_training_goes_on_from_the_calibrated_head():
    run = start(toy_cell(None, FFC(every=2), protocol={**exact, "rounds": 5}))
    heads = []
    for _ in range(5):
        run.advance()
        z, y = pooled(run)
        expected = np.linalg.lstsq(z, one_hot(y, 3), rcond=None)[0].T
        heads.append(np.allclose(run.state.params["head.weight"].numpy(), expected, rtol=0, atol=1e-9))
    assert heads == [False, True, False, True, False]


def test_calibrating_at_the_last_round_only_is_calibrating_once():
    once, last = (trained(toy_cell(None, FFC(every=every), protocol={"rounds": 3})) for every in (0, 3))
    assert weights(once) == weights(last)
    assert score_stages(once) == score_stages(last)


@pytest.mark.parametrize(("field", "value", "rule"), [("ridge", -0.1, "not be negative"), ("every", -1, "be 0")])
def test_settings_outside_their_domain_are_refused(field, value, rule):
    with pytest.raises(UserError, match=rf"addon\.ffc\.{field} must {rule}"):
        FFC(**{field: value})
