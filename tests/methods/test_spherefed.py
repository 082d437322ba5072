"""SphereFed and each of its ingredients alone, against NumPy float64."""

import itertools

import numpy as np
import pytest
import torch

from fedspan.benchmark.errors import Incompatible, UserError
from fedspan.benchmark.net import Unit
from fedspan.benchmark.running.cell_run import run_cell
from fedspan.benchmark.training import stages
from fedspan.benchmark.training.scoring import score_stages
from fedspan.methods.addons import spherefed
from fedspan.methods.addons.babu import BABU
from fedspan.methods.addons.ccvr import CCVR
from fedspan.methods.addons.etf import simplex
from fedspan.methods.addons.ffc import FFC
from fedspan.methods.addons.oracle_head import OracleHead
from fedspan.methods.addons.spherefed import SphereFed, orthonormal_rows, spread_rows
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.methods.algorithms.fedprox import FedProx
from tests.helpers import how, start, toy_cell, trained
from tests.methods.heads import one_hot, pooled, softmax
from tests.toys import LocalHead, NormNet, PlainNet, Scaffold, ServerMomentum

HEADS = ("orthonormal", "tammes", "random", "trained")
FIXED = HEADS[:3]


@pytest.fixture(autouse=True)
def quick_rows(request, monkeypatch):
    """Spread rows by a hundredth of the steps, but where the result matters."""
    if "possible" not in request.node.name:
        monkeypatch.setattr(spherefed, "TAMMES_STEPS", spherefed.TAMMES_STEPS // 100)


def only(**settings):
    """Return SphereFed with nothing but these ingredients."""
    return SphereFed(**(SphereFed.neutral | settings))


# the head -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "dimensions"), [(100, 1280), (10, 64), (5, 5), (1, 3)])
def test_the_orthonormal_head_is_orthonormal(rows, dimensions):
    torch.manual_seed(0)
    w = orthonormal_rows(rows, dimensions).float().numpy().astype(np.float64)
    assert w.shape == (rows, dimensions)
    np.testing.assert_allclose(w @ w.T, np.eye(rows), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "dimensions", "cosine"),
    [(2, 3, -1), (3, 2, -1 / 2), (4, 3, -1 / 3), (6, 8, -1 / 5), (6, 3, 0)],
)
def test_tammes_rows_are_as_far_apart_as_is_known_to_be_possible(rows, dimensions, cosine):
    torch.manual_seed(0)
    w = spread_rows(rows, dimensions).numpy()
    np.testing.assert_allclose(np.linalg.norm(w, axis=1), 1, rtol=1e-6)
    assert (w @ w.T - 2 * np.eye(rows)).max() == pytest.approx(cosine, abs=0.05)


def test_tammes_rows_descend_by_the_settings_of_appendix_d(monkeypatch):
    """Learning rate 0.1 and momentum 0.9, on the mean over rows of the largest cosine to another row."""
    monkeypatch.setattr(spherefed, "TAMMES_STEPS", 6)
    torch.manual_seed(0)
    found = spread_rows(6, 8).numpy()
    torch.manual_seed(0)
    w, velocity = torch.randn(6, 8).double().numpy(), 0.0
    w /= np.linalg.norm(w, axis=1, keepdims=True)
    for _ in range(5):  # the rows after the last step are never measured
        nearest = (w @ w.T - 2 * np.eye(6)).argmax(1)
        gradient = w[nearest]
        np.add.at(gradient, nearest, w)
        velocity = 0.9 * velocity + gradient / 6
        w = w - 0.1 * velocity
        w /= np.linalg.norm(w, axis=1, keepdims=True)
    np.testing.assert_allclose(found, w, rtol=0, atol=1e-6)


def test_a_single_class_has_nothing_to_be_far_from():
    torch.manual_seed(0)
    assert torch.linalg.norm(spread_rows(1, 4)).item() == pytest.approx(1)


@pytest.mark.parametrize("head", HEADS)
def test_fixed_heads_have_no_bias_and_the_trained_one_is_the_models_own(head):
    params = start(toy_cell(None, only(head=head))).state.params
    assert ("head.bias" in params) == (head == "trained")
    if head == "trained":
        assert torch.equal(params["head.weight"], start(toy_cell()).state.params["head.weight"])
    gram = params["head.weight"] @ params["head.weight"].T
    assert torch.allclose(gram, torch.eye(3), atol=1e-6) == (head == "orthonormal")


@pytest.mark.parametrize("head", FIXED)
def test_another_seed_makes_another_head(head):
    zero, one = (start(toy_cell(None, only(head=head), seed=seed)).state.params["head.weight"] for seed in (0, 1))
    assert not torch.allclose(zero, one)


@pytest.mark.parametrize("base", [FedAvg(), FedProx(mu=0.1), ServerMomentum(), Scaffold()], ids=lambda c: c.name)
@pytest.mark.parametrize("head", HEADS)
def test_a_fixed_head_never_moves_and_never_travels(base, head):
    """Not by gradient, momentum, weight decay, server momentum nor variates."""
    run = start(toy_cell(base, only(head=head), participation=0.5))
    before = run.state.params["head.weight"].clone()
    while not run.finished:
        run.advance()
    assert torch.equal(run.state.params["head.weight"], before) == (head != "trained")
    assert ("head.weight" in run.paths.shared) == (head == "trained")


def test_the_head_is_not_sent():
    free, fixed = (trained(toy_cell(None, only(head=head))).meter for head in ("trained", "random"))
    assert free.bytes_up - fixed.bytes_up == 3 * 6 * (3 * 5 + 3) * 4
    assert free.bytes_down - fixed.bytes_down == 3 * 6 * (3 * 5 + 3) * 4


def test_more_classes_than_dimensions_cannot_be_orthonormal(tmp_path):
    cell = toy_cell(None, SphereFed(), model=PlainNet(width=2))
    message = "'spherefed' cannot make 3 orthonormal rows in 2 feature dimensions"
    with pytest.raises(Incompatible, match=message):
        start(cell)
    record = run_cell(cell, how(tmp_path))
    assert record["status"] == "skipped"
    assert "addon.spherefed.head=tammes" in record["reason"]
    start(toy_cell(None, SphereFed(head="tammes"), model=PlainNet(width=2)))


# unit features and the loss -----------------------------------------------------------------------


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("model", [PlainNet(), NormNet()], ids=["plain", "batchnorm"])
def test_unit_features_have_length_one(unit, model):
    lengths = np.linalg.norm(pooled(trained(toy_cell(None, only(unit=unit), model=model)))[0], axis=1)
    assert np.allclose(lengths, 1, atol=1e-6) == unit


def test_a_feature_vector_of_zeros_stays_zero():
    z = torch.zeros(2, 4, requires_grad=True)
    Unit()(torch.relu(z)).sum().backward()
    assert not Unit()(z).any()
    assert not z.grad.any()


@pytest.mark.parametrize("temperature", [1.0, 0.25, 30.0])
@pytest.mark.parametrize("criterion", ["mse", "ce"])
def test_loss_and_gradient_are_those_of_the_paper(criterion, temperature):
    """Eq. 5 with C classes, or cross-entropy, on tau W z."""
    rng = np.random.default_rng(0)
    logits, y = rng.normal(size=(7, 4)), rng.integers(0, 4, 7)
    leaf = torch.from_numpy(logits).requires_grad_()
    step = type("Step", (), {"logits": leaf, "y": torch.from_numpy(y)})
    loss = only(criterion=criterion, temperature=temperature).loss(step)
    loss.backward()
    o, target = temperature * logits, one_hot(y, 4)
    if criterion == "mse":
        value, gradient = ((o - target) ** 2).sum(1).mean() / 4, temperature * 2 * (o - target) / (4 * 7)
    else:
        value, gradient = -np.log((softmax(o) * target).sum(1)).mean(), temperature * (softmax(o) - target) / 7
    assert loss.item() == pytest.approx(value, rel=1e-10)
    np.testing.assert_allclose(leaf.grad.numpy(), gradient, rtol=0, atol=1e-10 * np.abs(gradient).max())


# one by one ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "unit", "criterion"),
    list(itertools.product(("trained", "random", "orthonormal"), (False, True), ("ce", "mse"))),
)
def test_every_cell_of_the_ablation_is_a_method_of_its_own(head, unit, criterion):
    """Table 3: CE or MSE by fixed random, fixed orthonormal, norm, both; here all twelve."""
    component = only(head=head, unit=unit, criterion=criterion)
    run = trained(toy_cell(None, component, protocol={"rounds": 1}))
    base = trained(toy_cell(protocol={"rounds": 1}))
    same = run.curve["train_loss"] == base.curve["train_loss"]
    assert same == (component == only())
    assert set(score_stages(run)) == {"trained", "best"}


@pytest.mark.parametrize("setting", ["head", "unit", "criterion", "ffc"])
def test_switching_one_ingredient_off_leaves_the_others(setting):
    run = trained(toy_cell(None, SphereFed(**{setting: SphereFed.neutral[setting]})))
    fixed = "head.bias" not in run.state.params and run.method.using("trainable")
    unit = np.allclose(np.linalg.norm(pooled(run)[0], axis=1), 1, atol=1e-6)
    squared = bool(run.method.using("loss"))
    found = {"head": bool(fixed), "unit": unit, "criterion": squared, "ffc": "calibrated" in score_stages(run)}
    assert found == {name: name != setting for name in found}


def test_calibration_alone_leaves_training_as_it_was():
    run, bare = trained(toy_cell(None, only(ffc=True))), trained(toy_cell())
    assert all(torch.equal(leaf, bare.state.params[path]) for path, leaf in run.state.params.items())
    assert score_stages(run)["calibrated"] == score_stages(trained(toy_cell(None, FFC())))["calibrated"]


def test_calibration_is_least_squares_on_unit_features():
    run = trained(toy_cell(None, SphereFed(), protocol={"precision": "float64"}))
    z, y = pooled(run)
    expected = np.linalg.lstsq(z, one_hot(y, 3), rcond=None)[0].T
    head = stages.calibrate(run.trainer, run.state, 0)["head.weight"].numpy()
    np.testing.assert_allclose(head, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


@pytest.mark.parametrize("calibration", [FFC(), CCVR(), OracleHead()], ids=lambda c: c.name)
def test_other_calibrations_stand_beside_it_once_its_own_is_off(calibration):
    with pytest.raises(Incompatible, match=f"'spherefed' and '{calibration.name}' both replace 'calibrate'"):
        start(toy_cell(None, SphereFed(), calibration))
    assert "calibrated" in score_stages(trained(toy_cell(None, SphereFed(ffc=False), calibration)))


def test_a_head_recalibrated_during_training_is_the_new_target_and_is_sent():
    run = start(toy_cell(None, SphereFed(every=1), protocol={"precision": "float64", "rounds": 2}))
    run.advance()
    z, y = pooled(run)
    expected = np.linalg.lstsq(z, one_hot(y, 3), rcond=None)[0].T
    np.testing.assert_allclose(run.state.params["head.weight"].numpy(), expected, rtol=0, atol=1e-9)
    body = sum(run.state.params[path].numel() for path in run.paths.shared)
    assert run.meter.calibration_up == 6 * 5 * (5 + 3) * 8
    assert run.meter.calibration_down == 6 * (body + 5 * 3) * 8
    head = run.state.params["head.weight"].clone()
    run.advance()
    assert torch.equal(run.state.params["head.weight"], head)


def test_what_is_frozen_twice_or_nowhere_trained_is_named():
    with pytest.raises(Incompatible, match="'babu' does nothing beside 'spherefed', which freezes the same weights"):
        start(toy_cell(None, SphereFed(), BABU()))
    with pytest.raises(Incompatible, match="'spherefed' freezes all that 'toy_fedrep' trains in a phase"):
        start(toy_cell(LocalHead(), SphereFed(ffc=False)))
    with pytest.raises(Incompatible, match="'spherefed' calibrates one global model, 'toy_fedrep' leaves weights with"):
        start(toy_cell(LocalHead(), only(ffc=True)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, r"addon\.spherefed\.temperature must be positive, got 0\.0"),
        ({"ridge": -1.0}, r"addon\.spherefed\.ridge must not be negative, got -1\.0"),
        ({"every": -1}, r"addon\.spherefed\.every must be 0"),
        ({"ffc": False, "ridge": 0.1}, r"addon\.spherefed\.ridge needs addon\.spherefed\.ffc=true, got 0\.1"),
        ({"ffc": False, "every": 2}, r"addon\.spherefed\.every needs addon\.spherefed\.ffc=true, got 2"),
    ],
)
def test_settings_outside_their_domain_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        SphereFed(**settings)


@pytest.mark.parametrize("make", [orthonormal_rows, simplex], ids=lambda make: make.__name__)
def test_no_direction_of_a_random_head_is_preferred(make):
    """A QR decomposition chooses signs of its own: without the correction the first number is never positive."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        firsts = torch.stack([make(3, 5)[0, 0] for _ in range(200)])
    assert 70 < int((firsts > 0).sum()) < 130


@pytest.mark.parametrize("images", [2, 3, 10])
def test_the_search_leaves_an_image_to_train_on(images):
    assert OracleHead(held_out=0.99)._held(images) == images - 1
