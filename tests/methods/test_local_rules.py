"""What FedRS, FedLC, FedSAM and MOON change in local training, against whole rounds of NumPy float64."""

import numpy as np
import pytest
import torch

from fedspan.benchmark.errors import Incompatible
from fedspan.benchmark.spec.diagnostics import Diagnostics
from fedspan.benchmark.training.saving import resume, save
from fedspan.benchmark.training.traffic import classifier_cost
from fedspan.methods.addons.babu import BABU
from fedspan.methods.addons.ccvr import CCVR
from fedspan.methods.addons.feddecorr import FedDecorr
from fedspan.methods.addons.ffc import FFC
from fedspan.methods.addons.spherefed import SphereFed
from fedspan.methods.addons.structured_decov import StructuredDeCov
from fedspan.methods.algorithms.fedlc import FedLC
from fedspan.methods.algorithms.fedrs import FedRS
from fedspan.methods.algorithms.fedsam import FedSAM
from fedspan.methods.algorithms.moon import Moon
from tests.helpers import start, toy_cell, trained, weights
from tests.methods.by_hand import (
    LINEAR,
    PLAIN,
    RELU,
    TANH,
    ByClass,
    Net,
    agree,
    counts,
    cross_entropy_slope,
    federated,
    finished,
    fresh,
    minus,
    norm,
    numbers,
    plain_gradient,
    plus,
    softmax,
    trained_by_hand,
)
from tests.toys import NormNet


def check(algorithm, gradient_of, **parts):
    """Compare all rounds with SGD on `gradient_of(run, client) -> gradient(w, x, y)`."""
    run = fresh(algorithm, **parts)
    expected = federated(
        run, lambda w, client, round: trained_by_hand(run, w, client, round, gradient_of(run, client))[0]
    )
    agree(finished(run).state.params, expected)


def test_fedavg_is_plain_sgd_on_each_client():
    check(None, lambda run, client: plain_gradient)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("parts", [{}, {"partition": ByClass()}], ids=["mixed", "one class each"])
def test_fedrs_shrinks_the_logits_of_missing_classes(alpha, parts):
    def gradient_of(run, client):
        shrink = np.where(counts(run, client) > 0, 1.0, alpha)

        def gradient(w, x, y):
            return PLAIN.gradient(w, x, shrink * cross_entropy_slope(shrink * PLAIN.logits(w, x), y))

        return gradient

    check(FedRS(alpha=alpha), gradient_of, **parts)


@pytest.mark.parametrize("tau", [0.1, 1.0])
@pytest.mark.parametrize("parts", [{}, {"partition": ByClass()}], ids=["mixed", "one class each"])
def test_fedlc_takes_a_margin_off_the_logits_and_missing_classes_out(tau, parts):
    def gradient_of(run, client):
        with np.errstate(divide="ignore"):
            margin = tau * counts(run, client).astype(np.float64) ** -0.25  # infinite without images

        def gradient(w, x, y):
            return PLAIN.gradient(w, x, cross_entropy_slope(PLAIN.logits(w, x) - margin, y))

        return gradient

    check(FedLC(tau=tau), gradient_of, **parts)


@pytest.mark.parametrize("tau", [1e-6, 0.1, 1.0])
def test_fedlc_gives_a_missing_class_no_gradient(tau):
    run = start(toy_cell(FedLC(tau=tau), partition=ByClass(), protocol={"weight_decay": 0.0}))
    delta = run.trainer.train(run.state, 4).delta["head.bias"]
    assert delta.tolist() == [0.0, 0.0, 0.0], "a client with one class has nothing to learn"


@pytest.mark.parametrize("rho", [0.05, 1.0])
def test_fedsam_takes_the_gradient_uphill(rho):
    def gradient_of(run, client):
        def gradient(w, x, y):
            g = plain_gradient(w, x, y)
            return plain_gradient(plus(w, g, rho / norm(g)), x, y)

        return gradient

    check(FedSAM(rho=rho), gradient_of)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("addon", [None, FedDecorr(), StructuredDeCov(groups=2)], ids=lambda a: a.name if a else "bare")
def test_fedsam_without_a_radius_is_fedavg_bit_for_bit_in_every_precision(precision, addon):
    """The second gradient is that of the same objective in the same types: a penalty too is computed in float32."""
    mine, plain = (
        trained(toy_cell(base, *([addon] if addon else []), model=NormNet(), protocol={"precision": precision}))
        for base in (FedSAM(rho=0.0), None)
    )
    assert weights(mine) == weights(plain)


def test_fedsam_counts_batchnorm_statistics_once():
    """With a learning rate too small to matter, the running statistics are FedAvg's."""
    cells = [
        toy_cell(a, model=NormNet(), protocol={"lr": 1e-12, "rounds": 1, "precision": "float64"})
        for a in (FedSAM(), None)
    ]
    mine, plain = map(trained, cells)
    agree(mine.state.buffers, numbers(plain.state.buffers), 1e-9)


# MOON ---------------------------------------------------------------------------------------------


def cosine(a, b):
    return (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))


def cosine_slope(a, b):
    """Return the gradient of each row's cosine in that row of a."""
    lengths = np.sqrt((a * a).sum(1) * (b * b).sum(1))[:, None]
    return b / lengths - cosine(a, b)[:, None] * a / (a * a).sum(1, keepdims=True)


def contrast_slope(features, near, far, mu, temperature):
    """Return the gradient of MOON's term in the features [B, d]."""
    similarity = np.stack([cosine(features, near), cosine(features, far)], 1) / temperature
    surprise = (softmax(similarity) - [1, 0]) * mu / temperature / len(features)
    return surprise[:, :1] * cosine_slope(features, near) + surprise[:, 1:] * cosine_slope(features, far)


PROJECTED = Net(("body.0.1", TANH), ("body.1", RELU), ("body.3", LINEAR))


@pytest.mark.parametrize(("projection", "net"), [((), PLAIN), ((7, 4), PROJECTED)], ids=["none", "projection"])
@pytest.mark.parametrize(
    ("mu", "temperature", "first"), [(1.0, 0.5, "global"), (5.0, 1.0, "global"), (5.0, 0.5, "untrained")]
)
def test_moon_pulls_to_the_global_and_away_from_the_previous_model(projection, net, mu, temperature, first):
    run = fresh(Moon(mu=mu, temperature=temperature, projection=projection, previous=first), protocol={"rounds": 4})
    previous = {client: numbers(run.state.row(client).states["moon"]) for client in range(6)}

    def local(w_global, client, round):
        def gradient(w, x, y):
            here, near, far = (net.features(weights, x) for weights in (w, w_global, previous[client]))
            slope = contrast_slope(here, near, far, mu, temperature)
            return net.gradient(w, x, cross_entropy_slope(net.logits(w, x), y), slope)

        w, _ = trained_by_hand(run, w_global, client, round, gradient)
        previous[client] = w
        return w

    expected = federated(run, local)
    agree(finished(run).state.params, expected)
    for client, row in run.state.rows.items():
        agree(row.states["moon"], previous[client])


def first_previous_models(seed=0, **settings):
    state = start(toy_cell(Moon(projection=(), **settings), seed=seed)).state
    return numbers(state.params), [numbers(state.row(client).states["moon"]) for client in range(6)]


def test_by_default_all_clients_begin_with_the_global_model_as_the_previous_one():
    initial, previous = first_previous_models()
    assert [norm(minus(tree, initial)) for tree in previous] == [0] * 6


def test_an_untrained_previous_model_is_a_clients_own_and_has_the_values_of_the_first_weights():
    initial, previous = first_previous_models(previous="untrained")
    for number, tree in enumerate(previous):
        assert all(norm(minus(tree, other)) > 0 for other in [initial, *previous[:number]])
        assert all(sorted(tree[path].flat) == sorted(leaf.flat) for path, leaf in initial.items())
    _, again = first_previous_models(previous="untrained")
    assert [norm(minus(tree, other)) for tree, other in zip(previous, again, strict=True)] == [0] * 6
    _, elsewhere = first_previous_models(seed=1, previous="untrained")
    assert all(norm(minus(tree, other)) > 0 for tree, other in zip(previous, elsewhere, strict=True))


def test_an_untrained_previous_model_outlives_a_resume_before_the_client_trained(tmp_path):
    """Half of the clients take part in a round: some train for the first time after the resume."""
    cell = toy_cell(Moon(projection=(), previous="untrained"), participation=0.5, protocol={"rounds": 4})
    straight, resumed = trained(cell), start(cell)
    resumed.advance()
    save(resumed, tmp_path / "checkpoint")
    assert len(resumed.state.rows) < 6
    resumed = start(cell)
    assert resume(resumed, tmp_path / "checkpoint")
    assert weights(finished(resumed)) == weights(straight)


def test_an_untrained_previous_model_is_the_same_where_clients_are_stacked():
    cell = toy_cell(Moon(projection=(), previous="untrained"), protocol={"precision": "float64"})
    agree(trained(cell, executor="vmap").state.params, numbers(trained(cell).state.params))


@pytest.mark.parametrize("model", [None, NormNet()], ids=["plain", "batchnorm"])
def test_moons_first_round_is_fedavgs(model):
    """The first previous model is the global one: they are equally near, and nothing pulls."""
    parts = {"model": model} if model else {}
    cells = [toy_cell(a, protocol={"rounds": 1, "precision": "float64"}, **parts) for a in (Moon(projection=()), None)]
    mine, plain = map(trained, cells)
    agree(mine.state.params, numbers(plain.state.params))


def test_without_weight_and_projection_moon_is_fedavg_bit_for_bit():
    mine, plain = trained(toy_cell(Moon(mu=0.0, projection=()), model=NormNet())), trained(toy_cell(model=NormNet()))
    assert {k: v.tolist() for k, v in mine.state.params.items()} == {
        k: v.tolist() for k, v in plain.state.params.items()
    }


def test_the_previous_model_keeps_its_own_batchnorm_statistics_and_gets_no_gradient():
    seen = []

    class OperationCounter(Moon):
        name = "moon"

        def penalty(self, step):
            seen.append((step.x, step.apply(step.client, {})[0]))
            return super().penalty(step)

    parts = {"model": NormNet(), "protocol": {"precision": "float64", "local_epochs": 1}}
    run = start(toy_cell(OperationCounter(projection=()), **parts))
    run.state.remember(4, run.trainer.train(run.state, 4).row)
    previous = start(toy_cell(**parts)).trainer.net.eval()
    statistics = numbers(previous.state_dict())
    previous.load_state_dict(run.state.row(4).states["moon"], strict=False)
    assert not np.array_equal(statistics["body.1.running_mean"], numbers(previous.state_dict())["body.1.running_mean"])
    seen.clear()
    run.trainer.train(run.state, 4)
    for x, features in seen:
        torch.testing.assert_close(features, previous(x)[0].detach())
        assert not features.requires_grad
    assert seen


def under_its_names_in_the_body(path):
    """Return what a weight is called where the projection ends the body, from its name where it begins the head."""
    first, _, rest = path.partition(".")
    if rest.startswith("projection."):
        number, _, rest = rest.removeprefix("projection.").partition(".")
        return f"body.{int(number) + 1}.{rest}"
    return f"body.0.{rest}" if first == "body" else path


@pytest.mark.parametrize("model", [None, NormNet()], ids=["plain", "batchnorm"])
def test_what_counts_as_representation_changes_nothing_of_moon_itself(model):
    parts = {"protocol": {"rounds": 4}} | ({"model": model} if model else {})
    body, projected = (
        finished(fresh(Moon(projection=(7, 4), representation=what), **parts)) for what in ("body", "projected")
    )
    agree(
        {under_its_names_in_the_body(path): leaf for path, leaf in body.state.params.items()},
        numbers(projected.state.params),
    )


@pytest.mark.parametrize(("representation", "dimensions"), [("projected", 4), ("body", 5)])
def test_a_penalty_sees_the_representation_before_or_after_the_projection(representation, dimensions):
    seen = set()

    class OperationCounter(FedDecorr):
        name = "feddecorr"

        def penalty(self, step):
            seen.add(step.features.shape[1])
            return super().penalty(step)

    moon = Moon(projection=(7, 4), representation=representation)
    finished(fresh(moon, protocol={"rounds": 1}, addons=(OperationCounter(),)))
    assert seen == {dimensions}


@pytest.mark.parametrize("addon", [CCVR(), FFC(), SphereFed(), SphereFed(ffc=False), BABU()], ids=lambda a: a.label())
def test_a_head_that_projects_is_no_linear_classifier_to_calibrate_or_to_fix(addon):
    with pytest.raises(Incompatible, match=addon.name):
        start(toy_cell(Moon(representation="body"), addon))


def test_a_head_that_projects_has_no_singular_space_to_line_up():
    with pytest.raises(Incompatible, match=r"'diagnostics\.spaces' works on a linear head, not on ProjectingHead"):
        start(toy_cell(Moon(representation="body"), diagnostics=Diagnostics(spaces=True)))


def test_what_a_head_reads_and_costs_is_told_of_all_of_it():
    """Five features of the body, projected to seven and four dimensions, three classes."""
    body, projected = (Moon(projection=(7, 4), representation=what) for what in ("body", "projected"))
    run = trained(toy_cell(body, StructuredDeCov(groups=5)))
    assert classifier_cost(run.trainer, run.state)["flops"] == 3 * (5 * 7 + 7 * 4 + 4 * 3) * run.meter.images
    with pytest.raises(Incompatible, match="cannot make 5 groups of 4 features"):
        start(toy_cell(projected, StructuredDeCov(groups=5)))


def test_the_projection_is_a_network_of_its_own_that_the_classifier_reads():
    net = start(toy_cell(Moon(projection=(640, 256)))).trainer.net
    assert [(m.in_features, m.out_features) for m in net.modules() if isinstance(m, torch.nn.Linear)] == [
        (72, 5),
        (5, 640),
        (640, 256),
        (256, 3),
    ]
