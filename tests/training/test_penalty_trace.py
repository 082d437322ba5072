"""Watching penalties changes nothing, and sees what the clients are about to train on."""

import pytest
import torch

from fedspan.benchmark.head import WEIGHT
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.running.cell_run import run_cell
from fedspan.benchmark.spec.diagnostics import Diagnostics
from fedspan.benchmark.training.diagnostics import for_figures
from fedspan.benchmark.training.penalty_trace import trace_penalties
from fedspan.benchmark.training.run import Run
from fedspan.benchmark.training.saving import resume, save
from fedspan.benchmark.training.traffic import classifier_cost
from fedspan.methods.addons.decov import DeCov
from fedspan.methods.addons.feddecorr import FedDecorr
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.methods.algorithms.fedprox import FedProx
from fedspan.methods.algorithms.fedrep import FedRep
from fedspan.methods.algorithms.fedsam import FedSAM
from fedspan.methods.algorithms.moon import Moon
from tests.helpers import how, start, toy_cell, trained
from tests.toys import CLIENTS


@pytest.mark.parametrize("algorithm", [FedAvg(), FedSAM()], ids=["fedavg", "gradients at other weights"])
def test_watching_leaves_no_trace_in_the_result(tmp_path, algorithm):
    scores = [
        run_cell(toy_cell(algorithm, FedDecorr(), diagnostics=diagnostics), how(tmp_path))
        for diagnostics in (Diagnostics(), Diagnostics(penalties=True))
    ]
    assert scores[0]["scores"] == scores[1]["scores"]
    assert scores[0]["compute"]["flops"] == scores[1]["compute"]["flops"]
    assert "diagnostics" not in scores[0]
    penalties = scores[1]["diagnostics"]["penalties"]["feddecorr"]
    assert [len(means) for means in penalties.values()] == [2] * CLIENTS, "two local epochs"


def test_the_mean_of_an_epoch_is_that_of_its_batches():
    run = start(toy_cell(FedAvg(), FedDecorr(), protocol={"lr": 1e-30, "weight_decay": 0.0}))
    client = CLIENTS - 1
    [means] = trace_penalties(run.trainer, run.state, [client])["feddecorr"].values()
    run.trainer.load(run.state, run.state.row(client))
    run.trainer.net.train()
    for epoch, mean in enumerate(means):
        total = count = 0
        for x, y in run.trainer.data.epoch(client, 0, epoch):
            with torch.no_grad():
                features, _ = run.trainer.net(x)
                total += len(y) * float(FedDecorr(beta=1.0).penalty(type("Step", (), {"features": features})))
            count += len(y)
        assert mean == pytest.approx(total / count, rel=1e-5)


@pytest.mark.parametrize(
    ("algorithm", "addons", "other"),
    [
        (FedAvg(), (FedDecorr(beta=0.1),), (FedAvg(), FedDecorr(beta=0.0))),
        (FedAvg(), (DeCov(beta=0.1),), (FedAvg(), DeCov(beta=0.4))),
        (FedProx(mu=0.1), (), (FedProx(mu=0.4),)),
        (Moon(mu=0.1, projection=()), (), (Moon(mu=0.4, projection=()),)),
    ],
    ids=["feddecorr", "decov", "fedprox", "moon"],
)
def test_penalties_are_watched_without_their_coefficient(algorithm, addons, other):
    """At the same weights: the steps are too short to tell the two apart."""
    short = {"lr": 1e-30, "weight_decay": 0.0}
    mine, others = (start(toy_cell(*parts, protocol=short)) for parts in ((algorithm, *addons), other))
    name = (addons or (algorithm,))[0].name
    assert (
        trace_penalties(mine.trainer, mine.state, [0])[name] == trace_penalties(others.trainer, others.state, [0])[name]
    )


def test_how_many_images_of_each_class_clients_hold_is_kept(tmp_path):
    record = run_cell(toy_cell(FedAvg(), diagnostics=Diagnostics(shares=True)), how(tmp_path))
    run = start(toy_cell(FedAvg()))
    labels = run.trainer.data.train.y
    expected = [
        torch.bincount(labels[mine], minlength=run.trainer.data.classes).tolist() for mine in run.trainer.data.indices
    ]
    assert record["diagnostics"] == {"shares": expected}
    assert len({tuple(held) for held in expected}) > 1


def test_penalties_survive_a_restart_after_the_last_round(tmp_path):
    cell = toy_cell(FedAvg(), FedDecorr(), diagnostics=Diagnostics(penalties=True))
    run = Run(cell, how(tmp_path))
    while not run.finished:
        run.advance()
    save(run, tmp_path / "checkpoint")
    again = Run(cell, how(tmp_path))
    assert resume(again, tmp_path / "checkpoint")
    assert for_figures(again.measured) == for_figures(run.measured)
    assert set(for_figures(again.measured)) == {"penalties"}


def test_classifiers_of_all_clients_are_compared(tmp_path):
    record = run_cell(toy_cell(FedAvg(), diagnostics=Diagnostics(alignment=True)), how(tmp_path))
    assert 0 < record["scores"]["alignment"]["cosine"] < 1
    assert record["scores"]["alignment"]["norm_difference"] > 0


@pytest.mark.parametrize("kind", ["tsne", "sphere"])
def test_an_embedding_has_a_point_for_every_image_of_every_model(tmp_path, kind):
    def points(**settings):
        cell = toy_cell(FedAvg(), diagnostics=Diagnostics(embedding=kind, **settings))
        return run_cell(cell, how(tmp_path))["diagnostics"]["embedding"]

    found = points(clients=(1, 3), classes=(0, 2), images=12)
    assert len(found["points"]) == len(found["classes"]) == len(found["clients"]) == 24
    assert set(found["classes"]) == {0, 2}
    assert found["clients"] == [1] * 12 + [3] * 12
    assert {len(point) for point in found["points"]} == {2 if kind == "tsne" else 3}
    alone = points(images=10)
    assert alone["clients"] == [None] * 10


def test_long_diagnostics_go_to_a_sidecar_of_their_own(tmp_path):
    cell = toy_cell(FedAvg(), diagnostics=Diagnostics(embedding="sphere", clients=tuple(range(CLIENTS))))
    record = run_cell(cell, how(tmp_path))
    embedding = record["diagnostics"]["embedding"]
    record["diagnostics"]["embedding"] = {name: 100 * values for name, values in embedding.items()}
    results = Results(tmp_path / "other")
    results.write(record)
    assert (results.records / f"{cell.key}.diagnostics.json").exists()
    assert results.read(cell.key)["diagnostics"] == record["diagnostics"]
    assert [one["key"] for one in results.all()] == [cell.key]


def test_the_classifier_costs_its_weights_both_ways_and_three_operations_per_weight_and_image(tmp_path):
    run = Run(toy_cell(FedAvg()), how(tmp_path))
    while not run.finished:
        run.advance()
    cost, head = classifier_cost(run.trainer, run.state), run.state.params[WEIGHT]
    assert cost["flops"] == 3 * head.numel() * run.meter.images
    assert cost["bytes_of_one_client"] == 2 * 3 * 4 * (head.numel() + len(head)), "three rounds, with a bias"


def test_a_classifier_that_only_some_epochs_train_costs_theirs_alone():
    run = trained(toy_cell(FedRep(head_epochs=1, body_epochs=3)))
    head = run.state.params[WEIGHT]
    assert classifier_cost(run.trainer, run.state)["flops"] == 3 * head.numel() * run.meter.images / 4
