import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedspan.benchmark.errors import Diverged, UserError
from fedspan.benchmark.spec.diagnostics import Diagnostics
from fedspan.benchmark.training.diagnostics import for_figures, measure
from fedspan.benchmark.training.run import participants
from fedspan.benchmark.training.saving import resume, save
from fedspan.benchmark.training.scoring import score_stages
from fedspan.benchmark.training.spectra import (
    by_tsne,
    classifier_alignment,
    covariance,
    effective_rank,
    gap,
    linear_map,
    on_sphere,
    singular_space_alignment,
    singular_values,
    summary,
)
from fedspan.methods.addons.feddecorr import FedDecorr
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.methods.algorithms.fedper import FedPer
from fedspan.methods.algorithms.local_only import LocalOnly
from fedspan.tasks.models.linear_net import LinearNet
from tests.helpers import start, toy_cell, trained, weights
from tests.toys import Blobs, NormNet


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
    found = run.measured["spectra"]
    run.trainer.load(run.state, run.state.first_row)
    data = run.trainer.data
    with torch.no_grad():
        z = run.trainer.net.eval()(data.normalise(data.test.x))[0].double().numpy()
    values = np.linalg.svd(z - z.mean(0), compute_uv=False) ** 2 / len(z)
    np.testing.assert_allclose(found["global"]["singular_values"], values[:3], rtol=1e-4)
    assert set(found["local"]) == set(found["gap"]) == {"2", "5"}
    assert found["local"]["2"] != found["local"]["5"] != found["global"]


def negative_variances(leaves):
    """Return the leaves with running variances under which a model outputs NaN, as moved statistics may become."""
    return {path: leaf - 1e6 if path.endswith("running_var") else leaf for path, leaf in leaves.items()}


@pytest.mark.parametrize("embedding", ["none", "sphere", "tsne"])
@pytest.mark.parametrize("clients", [(), (1,)])
def test_a_cell_whose_measured_model_outputs_nan_has_diverged_and_not_failed(embedding, clients):
    settings = Diagnostics(spectra=True, embedding=embedding, clients=clients)
    run = start(toy_cell(model=NormNet(), diagnostics=settings, protocol={"rounds": 1}))
    run.state.buffers = negative_variances(run.state.buffers)
    with pytest.raises(Diverged, match="round 1: the test loss is nan"):
        run.advance()
    assert run.measured == {}


def test_a_local_model_that_outputs_nan_has_no_spectrum_and_takes_none_from_the_others():
    run = trained(toy_cell(model=NormNet()))
    whole = run.state.params | run.state.buffers
    settings = Diagnostics(spectra=True, clients=(2, 5), top=3)
    found = measure(run.trainer, run.state, settings, {2: negative_variances(whole), 5: whole}, seed=0)["spectra"]
    assert set(found["local"]) == set(found["gap"]) == {"5"}
    assert found["local"]["5"] == found["global"]


def test_a_single_clients_local_model_is_the_global_one_so_its_gap_is_zero():
    settings = Diagnostics(spectra=True, clients=(0,))
    found = trained(toy_cell(clients=1, diagnostics=settings, protocol={"precision": "float64"})).measured["spectra"]
    assert found["gap"]["0"] == pytest.approx(0, abs=1e-6)


def test_a_client_that_does_not_train_last_is_refused_before_anything_runs():
    cell = toy_cell(diagnostics=Diagnostics(spectra=True, clients=(6,)))
    with pytest.raises(UserError, match="client 6, which does not train in the last round"):
        trained(cell)


# the round ------------------------------------------------------------------------------------------

EVERYTHING = Diagnostics(
    spectra=True, alignment=True, penalties=True, embedding="sphere", clients=(1, 2), top=4, images=9
)


def measured(run):
    return run.measured["spectra"], for_figures(run.measured), score_stages(run)["alignment"]


def test_a_round_in_the_middle_shows_what_a_run_of_so_many_rounds_shows_at_its_end():
    """The rate is constant, so both runs are the same until then."""
    short = trained(toy_cell(FedAvg(), FedDecorr(), diagnostics=EVERYTHING, protocol={"rounds": 2}))
    settings = replace(EVERYTHING, round=2)
    longer = trained(toy_cell(FedAvg(), FedDecorr(), diagnostics=settings, protocol={"rounds": 5}))
    at_its_end = trained(toy_cell(FedAvg(), FedDecorr(), diagnostics=EVERYTHING, protocol={"rounds": 5}))
    assert measured(longer) == measured(short)
    assert all(ours != theirs for ours, theirs in zip(measured(longer), measured(at_its_end), strict=True))


def test_measuring_a_round_in_the_middle_leaves_no_trace_in_the_training():
    plain = trained(toy_cell(FedAvg(), FedDecorr()))
    measured = trained(toy_cell(FedAvg(), FedDecorr(), diagnostics=replace(EVERYTHING, round=1)))
    assert weights(measured) == weights(plain)
    assert measured.curve == plain.curve


def test_what_was_measured_survives_a_restart_after_its_round(tmp_path):
    cell = toy_cell(FedAvg(), FedDecorr(), diagnostics=replace(EVERYTHING, round=1))
    run = start(cell)
    run.advance()
    save(run, tmp_path / "checkpoint")
    again = start(cell)
    assert resume(again, tmp_path / "checkpoint")
    while not again.finished:
        again.advance()
    assert measured(again) == measured(trained(cell))


def test_clients_are_those_of_the_round_that_is_measured():
    """With sampled clients each round has its own."""
    rounds = [set(participants(6, 0.5, 0, number)) for number in range(3)]
    [client, *_] = rounds[0] - rounds[2]
    settings = Diagnostics(spectra=True, clients=(client,), top=4)
    with pytest.raises(UserError, match=f"client {client}, which does not train in the last round"):
        start(toy_cell(participation=0.5, diagnostics=settings))
    found = trained(toy_cell(participation=0.5, diagnostics=replace(settings, round=1))).measured["spectra"]
    assert set(found["local"]) == {str(client)}


def test_a_round_belongs_to_the_key_only_where_one_is_named_and_something_is_measured():
    assert "round" not in Diagnostics(spectra=True).what()
    assert Diagnostics(round=90).what() == {}
    assert Diagnostics(spectra=True, round=90).what() == Diagnostics(spectra=True).what() | {"round": 90}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"spectra": True, "round": 4}, "diagnostics.round is 4, but there are 3 rounds; 0 is the last one"),
        ({"embedding": "sphere", "classes": (7,)}, "diagnostics.classes names class 7 of only 3"),
        ({"spaces": True}, "diagnostics.spaces needs a model whose layers are linear"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_trains(settings, message):
    with pytest.raises(UserError, match=message):
        start(toy_cell(diagnostics=Diagnostics(**settings)))


@pytest.mark.parametrize("measured", ["spectra", "embedding", "spaces"])
def test_a_global_model_that_stays_with_the_clients_is_not_measured(measured, caplog):
    """Its weights would be those before training."""
    settings = Diagnostics(**{measured: "sphere" if measured == "embedding" else True})
    assert measured not in trained(toy_cell(LocalOnly(), model=LinearNet(), diagnostics=settings)).measured
    assert measured in trained(toy_cell(FedAvg(), model=LinearNet(), diagnostics=settings)).measured
    assert re.search(r"the global model is not measured: body\.\S+ stays with the clients", caplog.text)


def test_what_the_clients_share_or_have_themselves_is_measured():
    """An embedding under local models, and a body that only the head of clients follows."""
    under_clients = Diagnostics(embedding="sphere", clients=(0,))
    assert "embedding" in trained(toy_cell(LocalOnly(), diagnostics=under_clients)).measured


def test_a_global_body_is_measured_where_only_the_head_stays_with_the_clients():
    found = trained(toy_cell(FedPer(), diagnostics=Diagnostics(spectra=True))).measured["spectra"]["global"]
    assert found["effective_rank"] > 1


def test_local_models_of_one_client_have_no_alignment():
    with pytest.raises(UserError, match=r"diagnostics\.alignment compares local models, the last round has 1"):
        start(toy_cell(participation=1 / 6, diagnostics=Diagnostics(alignment=True)))


def test_an_embedding_needs_images_of_its_classes():
    for settings, test, message in (
        (
            {"embedding": "tsne", "classes": (2,)},
            8,
            "diagnostics.embedding=tsne needs 3 test images or more; the classes in diagnostics.classes have 2",
        ),
        (
            {"embedding": "sphere", "classes": (2,)},
            2,
            "diagnostics.embedding=sphere needs 1 test images or more; the classes in diagnostics.classes have 0",
        ),
    ):
        with pytest.raises(UserError, match=message):
            start(toy_cell(dataset=Blobs(test=test), diagnostics=Diagnostics(**settings)))


def test_a_round_before_the_first_is_refused():
    with pytest.raises(UserError, match=r"diagnostics\.round must be 0 \(the last round\) or more, got -1"):
        Diagnostics(round=-1)


# classifiers, singular spaces, the sphere -----------------------------------------------------------


def test_equal_classifiers_agree_and_scaled_ones_differ_in_length_alone():
    head = torch.randn(4, 7, generator=torch.manual_seed(0))
    assert classifier_alignment([head, head, head]) == pytest.approx({"cosine": 1.0, "norm_difference": 0.0})
    scaled = classifier_alignment([head, 3 * head])
    assert scaled == pytest.approx({"cosine": 1.0, "norm_difference": 2 * head.norm(dim=1).mean().item()}, rel=1e-5)


def test_agreement_is_the_mean_over_classes_and_pairs_of_clients():
    heads = torch.randn(3, 4, 7, generator=torch.manual_seed(1))
    pairs = [(0, 1), (0, 2), (1, 2)]
    cosine = np.mean([torch.cosine_similarity(heads[a], heads[b]).mean().item() for a, b in pairs])
    lengths = np.mean([(heads[a].norm(dim=1) - heads[b].norm(dim=1)).abs().mean().item() for a, b in pairs])
    assert classifier_alignment(list(heads)) == pytest.approx({"cosine": cosine, "norm_difference": lengths}, rel=1e-5)


def test_the_classifiers_of_all_clients_of_a_round_are_compared():
    run = start(toy_cell())
    _, kept = run.executor.run(run.state, run.participants(), keep=range(6))
    found = measure(run.trainer, run.state, Diagnostics(alignment=True), kept, 0)["alignment"]
    assert found == classifier_alignment([kept[k]["head.weight"] for k in range(6)])


def test_an_embedding_is_that_of_each_clients_own_model():
    settings = Diagnostics(embedding="sphere", clients=(1, 5), images=12)
    points = trained(toy_cell(diagnostics=settings)).measured["embedding"]["points"]
    assert points[:12] != points[12:]


def test_balanced_spaces_line_up_on_the_diagonal_and_turned_ones_do_not():
    q, _ = torch.linalg.qr(torch.randn(6, 6, generator=torch.manual_seed(0), dtype=torch.float64))
    product = q @ torch.diag(torch.arange(6, 0, -1).double())
    head = torch.diag(torch.arange(4, 0, -1).double()) @ q[:, :4].T
    torch.testing.assert_close(singular_space_alignment(product, head), torch.eye(4, dtype=torch.float64))
    turned = singular_space_alignment(product, head.flip(1))
    assert not torch.allclose(turned, torch.eye(4, dtype=torch.float64), atol=0.1)


def test_the_matrix_of_a_linear_body_is_found_and_another_body_is_refused():
    weights = torch.randn(5, 12, generator=torch.manual_seed(0))
    for dtype in (torch.float32, torch.float64):
        found = linear_map(lambda x: x.flatten(1) @ weights.to(dtype).T, (3, 2, 2), dtype)  # noqa: B023 - called here
        torch.testing.assert_close(found.float(), weights)
    with pytest.raises(UserError, match="layers are linear and without bias"):
        linear_map(lambda x: (x.flatten(1) @ weights.T).relu(), (3, 2, 2))


def test_points_on_the_sphere_have_unit_length_in_three_directions():
    features = torch.randn(20, 9, generator=torch.manual_seed(0))
    points = on_sphere(features)
    assert points.shape == (20, 3)
    torch.testing.assert_close(points.norm(dim=1), torch.ones(20, dtype=torch.float64))
    assert on_sphere(features[:, :2]).shape == (20, 3)


def test_points_on_the_sphere_are_the_three_widest_directions_about_the_mean():
    draw = torch.manual_seed(0)
    wide = torch.randn(50, 3, generator=draw) * torch.tensor([9.0, 6.0, 3.0])
    features = torch.cat([0.01 * torch.randn(50, 4, generator=draw), wide], 1)
    centred = wide.double() - wide.double().mean(0)
    expected = centred / centred.norm(dim=1, keepdim=True)
    for moved in (features, features + 100):
        assert (on_sphere(moved) @ on_sphere(moved).T - expected @ expected.T).abs().max() < 0.05, (
            "angles between points"
        )


def test_every_seed_of_a_cell_draws_an_embedding():
    """The layout's generator takes 32 bits of it."""
    features = torch.randn(8, 4, generator=torch.manual_seed(0))
    torch.testing.assert_close(by_tsne(features, 2**32 + 5), by_tsne(features, 5))
