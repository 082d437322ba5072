"""The head after training: fixed at random, refitted on all features, tuned by each client."""

import numpy as np
import pytest
import torch

from fedspan.benchmark import rng
from fedspan.benchmark.errors import Incompatible, UserError
from fedspan.benchmark.training import stages
from fedspan.benchmark.training.scoring import score_stages
from fedspan.methods.addons.babu import BABU
from fedspan.methods.addons.ffc import FFC
from fedspan.methods.addons.oracle_head import OracleHead
from fedspan.methods.addons.personal_head import PersonalHead
from fedspan.methods.addons.spherefed import SphereFed
from tests.helpers import start, toy_cell, trained, weights
from tests.methods.heads import one_hot, orders, pooled, sgd
from tests.toys import LocalNorm, NormNet, ServerMomentum

exact = {"precision": "float64"}


def calibrated(run):
    return stages.calibrate(run.trainer, run.state, run.cell.seed)


def test_a_learning_rate_of_zero_is_not_the_default():
    made = torch.Generator().manual_seed(0)
    head = {"head.weight": torch.randn(3, 4, generator=made), "head.bias": torch.zeros(3)}
    features, labels = torch.randn(5, 4, generator=made), torch.tensor([0, 1, 2, 0, 1])
    for lr, moves in ((None, True), (0.0, False)):
        after = OracleHead().fit(head, features, labels, "ce", made, lr)
        assert torch.equal(after["head.weight"], head["head.weight"]) is not moves


# a fixed random head ------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [None, ServerMomentum()], ids=["fedavg", "server momentum"])
def test_babu_trains_the_body_alone(base):
    run, bare = start(toy_cell(base, BABU())), start(toy_cell(base))
    before = {path: leaf.clone() for path, leaf in run.state.params.items()}
    assert all(torch.equal(leaf, bare.state.params[path]) for path, leaf in before.items())
    while not run.finished:
        run.advance()
    assert {path for path, leaf in run.state.params.items() if torch.equal(leaf, before[path])} == {
        "head.weight",
        "head.bias",
    }
    assert not any(path.startswith("head.") for path in run.paths.shared)


# all features pooled ------------------------------------------------------------------------------


@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_the_closed_oracle_is_what_ffc_gets_from_sums(ridge):
    oracle = trained(toy_cell(None, OracleHead(by="closed", ridge=ridge), protocol=exact))
    sums = trained(toy_cell(None, FFC(ridge=ridge), protocol=exact))
    a, b = calibrated(oracle)["head.weight"], calibrated(sums)["head.weight"]
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10 * b.abs().max().item())


@pytest.mark.parametrize("criterion", ["ce", "mse"])
def test_the_trained_oracle_is_sgd_on_all_features(criterion):
    component = OracleHead(by="sgd", criterion=criterion, epochs=3, lr=0.3, momentum=0.8, batch_size=20)
    run = trained(toy_cell(None, component, protocol=exact))
    z, y = pooled(run)
    w, b = (run.state.params[path].numpy() for path in ("head.weight", "head.bias"))
    draws = rng.generator(run.cell.seed, "calibrate", "oracle_head", run.state.round)
    settings = {"loss": criterion, "lr": 0.3, "momentum": 0.8, "batch_size": 20}
    expected = sgd(w, b, z, y, orders(0, len(y), 3, draws), **settings)
    after = calibrated(run)
    np.testing.assert_allclose(after["head.weight"].numpy(), expected[0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(after["head.bias"].numpy(), expected[1], rtol=0, atol=1e-10)


def test_the_search_reports_the_candidate_that_is_best_on_images_held_back_trained_again_on_all():
    """By hand: every loss at every rate, chosen on 30% of the training images."""
    search = OracleHead(criteria=("mse", "ce"), rates=(0.01, 0.3, 2.0), held_out=0.3, epochs=3, batch_size=20)
    run = trained(toy_cell(None, search, protocol=exact))
    z, y = pooled(run)
    w, b = (run.state.params[path].numpy() for path in ("head.weight", "head.bias"))
    draws = rng.generator(run.cell.seed, "calibrate", "oracle_head", run.state.round)
    order = torch.randperm(len(y), generator=draws).numpy()
    held, rest = order[:28], order[28:]
    seed = int(torch.randint(2**62, (1,), generator=draws))

    def fitted(loss, lr, part):
        return sgd(w, b, z[part], y[part], orders(seed, len(part), 3), loss=loss, lr=lr, momentum=0.9, batch_size=20)

    def right(head):
        return np.sum((z[held] @ head[0].T + head[1]).argmax(1) == y[held])

    candidates = [(loss, lr) for loss in ("mse", "ce") for lr in (0.01, 0.3, 2.0)]
    rights = [right(fitted(*one, rest)) for one in candidates]
    assert len(set(rights)) > 1
    expected = fitted(*candidates[int(np.argmax(rights))], np.arange(len(y)))
    after = calibrated(run)
    np.testing.assert_allclose(after["head.weight"].numpy(), expected[0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(after["head.bias"].numpy(), expected[1], rtol=0, atol=1e-10)


def test_the_sanity_check_is_not_what_it_checks():
    """A check by the closed form would be FFC again, and could not fail."""
    sphere = SphereFed(ffc=False)
    check, ffc = (trained(toy_cell(None, sphere, addon, protocol=exact)) for addon in (OracleHead(), FFC()))
    assert not torch.allclose(calibrated(check)["head.weight"], calibrated(ffc)["head.weight"], atol=1e-3)


def test_a_candidate_whose_weights_explode_is_never_the_best():
    sane = OracleHead(criteria=("mse",), rates=(0.1,))
    search = OracleHead(criteria=("mse",), rates=(1e30, 0.1))
    heads = [calibrated(trained(toy_cell(None, one, protocol=exact)))["head.weight"] for one in (sane, search)]
    assert torch.equal(*heads)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"criteria": ()}, r"addon\.oracle_head\.criteria must name a loss, got \[\]"),
        ({"rates": ()}, r"addon\.oracle_head\.rates must be positive learning rates, got \[\]"),
        ({"rates": (0.1, 0.0)}, r"addon\.oracle_head\.rates must be positive learning rates, got \[0\.1, 0\.0\]"),
        ({"held_out": 1.0}, r"addon\.oracle_head\.held_out must lie in \(0, 1\), got 1\.0"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(settings, message):
    with pytest.raises(UserError, match=message):
        OracleHead(**settings)


def test_long_training_by_squared_loss_reaches_the_closed_form():
    """Closed form and SGD agree on the optimum: the paper's reason to expect FFC near its sanity check."""
    sphere, protocol = SphereFed(ffc=False), {"precision": "float64"}
    closed = trained(toy_cell(None, sphere, OracleHead(by="closed"), protocol=protocol))
    longer = OracleHead(by="sgd", criterion="mse", epochs=3000, lr=0.5, batch_size=94)
    by_sgd = trained(toy_cell(None, sphere, longer, protocol=protocol))
    z, y = pooled(closed)

    def error(run):
        return np.mean((z @ calibrated(run)["head.weight"].numpy().T - one_hot(y, 3)) ** 2)

    assert error(closed) <= error(by_sgd) <= 1.001 * error(closed)


def test_the_oracle_is_charged_for_the_features_themselves():
    run = start(toy_cell(None, OracleHead()))
    score_stages(run)
    assert run.meter.calibration_up == 94 * (5 + 1) * 4


# a head for each client ---------------------------------------------------------------------------


@pytest.mark.parametrize("criterion", ["ce", "mse"])
def test_each_client_tunes_the_trained_head_on_its_own_features(criterion):
    component = PersonalHead(criterion=criterion, epochs=2, lr=0.1, batch_size=4)
    run = trained(toy_cell(None, component, model=NormNet(), protocol=exact))
    before = weights(run)
    scores, accuracies = score_stages(run)["personalised"], []
    assert weights(run) == before
    data, net = run.trainer.data, run.trainer.net.eval()
    for client in range(6):
        run.trainer.load(run.state, run.state.first_row)
        with torch.no_grad():
            z = net.eval()(data.normalise(data.train.x[data.indices[client]]))[0].numpy()
            test = net(data.normalise(data.test.x))[0].numpy()
        y = data.train.y[data.indices[client]].numpy()
        w, b = (run.state.params[path].numpy() for path in ("head.weight", "head.bias"))
        draws = rng.generator(0, "personalise", "personal_head", client)
        settings = {"loss": criterion, "lr": 0.1, "momentum": 0.9, "batch_size": 4}
        w, b = sgd(w, b, z, y, orders(0, len(y), 2, draws), **settings)
        stages.personalise(run.trainer, run.state, client, 0)
        np.testing.assert_allclose(net.head.weight.detach().numpy(), w, rtol=0, atol=1e-10)
        np.testing.assert_allclose(net.head.bias.detach().numpy(), b, rtol=0, atol=1e-10)
        accuracies.append(100 * np.mean((test @ w.T + b).argmax(1) == data.test.y.numpy()))
    assert len(data.indices[0]) == 1
    assert len(set(accuracies)) > 1
    assert scores["client_accuracy"] == pytest.approx(np.mean(accuracies))
    assert scores["client_accuracy_std"] == pytest.approx(np.std(accuracies))


@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_local_calibration_is_the_clients_own_least_squares(ridge):
    run = trained(toy_cell(None, SphereFed(), PersonalHead(by="ffc", ridge=ridge), protocol=exact))
    assert {"calibrated", "personalised"} < set(score_stages(run))
    for client in range(6):
        run.trainer.load(run.state, run.state.first_row)
        z, y = (part.numpy() for part in stages.client_features(run.trainer, client))
        gram = z.T @ z + ridge * np.eye(z.shape[1])
        expected = (np.linalg.pinv(gram, rcond=1e-13, hermitian=True) @ z.T @ one_hot(y, 3)).T
        stages.personalise(run.trainer, run.state, client, 0)
        head = run.trainer.params["head.weight"].detach().numpy()
        np.testing.assert_allclose(head, expected, rtol=0, atol=1e-8 * max(1, np.abs(expected).max()))


def test_clients_with_weights_of_their_own_start_from_those():
    """FedBN's clients keep their normalisation; every client trained, so all of them differ."""
    run = trained(toy_cell(LocalNorm(), PersonalHead(), model=NormNet()))
    stages.personalise(run.trainer, run.state, 2, 0)
    for path in run.paths.own:
        live = run.trainer.params.get(path, run.trainer.buffers.get(path))
        assert torch.equal(live, run.state.row(2).own[path])
        assert not torch.equal(live, run.state.row(3).own[path])


def test_personalisation_does_not_depend_on_the_order_of_clients():
    run = trained(toy_cell(None, PersonalHead()))

    def head(client):
        stages.personalise(run.trainer, run.state, client, 0)
        return run.trainer.params["head.weight"].detach().clone()

    forward = [head(client) for client in range(6)]
    backward = [head(client) for client in reversed(range(6))]
    assert all(torch.equal(a, b) for a, b in zip(forward, reversed(backward), strict=True))


def test_a_personal_head_adds_no_traffic():
    plain, tuned = (trained(toy_cell(None, *addons)) for addons in ((), (PersonalHead(),)))
    score_stages(tuned)
    assert tuned.meter.as_dict()["bytes"] == plain.meter.as_dict()["bytes"]


def test_only_one_component_personalises():
    class Other(PersonalHead):
        name = "other"

    with pytest.raises(Incompatible, match="'personal_head' and 'other' both replace 'personalise'"):
        start(toy_cell(None, PersonalHead(), Other()))


@pytest.mark.parametrize("cls", [OracleHead, PersonalHead], ids=lambda cls: cls.name)
@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("ridge", -0.5, "must not be negative"),
        ("lr", 0.0, "must be positive"),
        ("momentum", 1.0, r"must lie in \[0, 1\)"),
        ("epochs", 0, "must be at least 1"),
        ("batch_size", 0, "must be at least 1"),
    ],
)
def test_settings_outside_their_domain_are_refused(cls, field, value, rule):
    with pytest.raises(UserError, match=rf"addon\.{cls.name}\.{field} {rule}, got {value}"):
        cls(**{field: value})
