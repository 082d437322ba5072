"""Trials: cells that are scored on held-out training images, and see no test image whatever the method."""

import dataclasses

import numpy as np
import pytest
import torch

from fedspan.benchmark.errors import CorruptFile, UserError
from fedspan.benchmark.records.model import STAGES
from fedspan.benchmark.records.validation import validate
from fedspan.benchmark.rng import numpy_generator
from fedspan.benchmark.running.cell_run import run_cell
from fedspan.benchmark.spec.diagnostics import Diagnostics
from fedspan.benchmark.task import Images
from fedspan.benchmark.training import evaluation
from fedspan.benchmark.training.evaluation import Score, evaluate, score_loaded
from fedspan.benchmark.training.executors.graph import Graph
from fedspan.benchmark.training.run import Run
from fedspan.benchmark.training.saving import resume, save
from fedspan.benchmark.training.scoring import score_stages
from fedspan.methods.addons.ccvr import CCVR
from fedspan.methods.addons.oracle_head import OracleHead
from fedspan.methods.addons.spherefed import SphereFed
from fedspan.methods.algorithms.centralized import Centralized
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.methods.algorithms.local_only import LocalOnly
from fedspan.tasks.partitions.domain import Domain
from fedspan.tasks.partitions.iid import IID
from fedspan.tasks.partitions.personal import Personal as PersonalPartition
from tests.benchmark.test_split import DOMAINS, DomainBlobs, OwnTests
from tests.contract.tape import Tapes
from tests.helpers import how, numbers, start, toy_cell, trained, weights
from tests.toys import Blobs, LocalHead, LocalNorm, NormNet, OwnHead, Personal, Sphere

SHARE = 0.3
SEEN = Diagnostics(spectra=True, clients=(3,), alignment=True, shares=True, embedding="sphere", images=9)


def trial(*stack, share=SHARE, protocol=None, **parts):
    return toy_cell(*stack, protocol={"validation": share, **(protocol or {})}, **parts)


CELLS = {
    "one test set": (),
    "calibrated": (FedAvg(), Sphere()),
    "calibrated between rounds": (FedAvg(), SphereFed(head="orthonormal", every=1)),
    "calibrated by ccvr": (FedAvg(), CCVR()),
    "calibrated by a search": (FedAvg(), OracleHead()),
    "personalised": (FedAvg(), Personal()),
    "own heads": (LocalHead(),),
    "alone": (LocalOnly(),),
    "pooled": (Centralized(),),
}
TASKS = {
    "one test set": {},
    "own test images": {"partition": OwnTests()},
    "domains": {"dataset": DomainBlobs(), "partition": Domain(), "clients": 3},
    "personal": {"partition": PersonalPartition(alpha=1.0), "dataset": Blobs(train=120, test=60), "clients": 4},
}


def spoiled(cell):
    """Return the cell, its key and its digests, with noise in place of all test images that its partition leaves."""
    dataset = cell.dataset
    clean = dataset.prepare(None)
    split = cell.partition.prepare(clean, cell.clients, numpy_generator(cell.seed, "partition"))

    class Spoiled(type(dataset)):
        def prepare(self, cache):
            tests = np.concatenate(split.test) if split.pooled else np.arange(len(clean.test)) + len(clean.train)
            every = clean.train.followed_by(clean.test)
            noise = torch.randint(0, 256, (len(tests), *every.x.shape[1:]), dtype=torch.uint8)
            x = every.x.index_copy(0, torch.from_numpy(tests), noise)
            y = every.y if split.pooled else (every.y + (torch.arange(len(every)) >= len(clean.train))) % 3
            halves = [
                Images(x[part], y[part], None if every.domain is None else every.domain[part])
                for part in torch.arange(len(every)).split([len(clean.train), len(clean.test)])
            ]
            return dataclasses.replace(clean, train=halves[0], test=halves[1])

    values = {field.name: getattr(dataset, field.name) for field in dataclasses.fields(dataset)}
    return dataclasses.replace(cell, dataset=Spoiled(**values))


# test images ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
@pytest.mark.parametrize("stack", CELLS.values(), ids=CELLS)
def test_other_test_images_change_nothing_in_a_trials_record(tmp_path, stack, task):
    one_model = not any(isinstance(part, (LocalHead, LocalOnly, Centralized)) for part in stack)
    cell = trial(*stack, **task, diagnostics=SEEN if one_model and task == {} else Diagnostics())
    there, here = (run_cell(each, how(tmp_path / name)) for name, each in (("a", cell), ("b", spoiled(cell))))
    assert there["status"] == "done", there["reason"]
    assert numbers(there) == numbers(here)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_spoiled_test_images_change_a_result(tmp_path, task):
    cell = toy_cell(**task)
    there, here = (run_cell(each, how(tmp_path / name)) for name, each in (("a", cell), ("b", spoiled(cell))))
    assert there["scores"] != here["scores"]


# scores ---------------------------------------------------------------------------------------------


def right_answers(run, client):
    """Return which of its held-out images the loaded net gets right."""
    data = run.trainer.data
    return evaluate(run.trainer, data.test.take(data.tests[client])).right


@pytest.mark.parametrize("stack", CELLS.values(), ids=CELLS)
def test_a_trial_has_scores_of_held_out_images_alone(tmp_path, stack):
    record = run_cell(trial(*stack), how(tmp_path))
    assert set(record["scores"]) == {"validation"}
    assert record["curve"]["accuracy"][-1] == record["scores"]["validation"]["accuracy.trained"]
    stages = [stage for stage in STAGES if stage in record["digests"]["stages"]]
    assert record["scores"]["validation"]["accuracy"] == record["scores"]["validation"][f"accuracy.{stages[-1]}"]
    assert record["scores"]["validation"]["loss"] == record["scores"]["validation"][f"loss.{stages[-1]}"]


def test_a_global_model_is_scored_by_the_mean_over_clients_weighted_by_their_held_out_images():
    run = trained(trial(partition=OwnTests(), protocol={"rounds": 1, "lr": 0.01}))
    scores = score_stages(run)["validation"]
    run.trainer.load(run.state, run.state.first_row)
    right = [right_answers(run, client).double() for client in range(1, 6)]
    sizes = [len(one) for one in right]
    each = [100 * float(one.mean()) for one in right]
    assert len(run.trainer.data.tests[0]) == 0  # it has a single image
    assert scores["accuracy"] == pytest.approx(np.average(each, weights=sizes))
    assert scores["client_accuracy"] == pytest.approx(np.mean(each))
    assert scores["accuracy"] != pytest.approx(scores["client_accuracy"])
    assert [scores[name] for name in ("images", "clients", "clients_without")] == [sum(sizes), 5, 1]


@pytest.mark.parametrize("stack", [(LocalHead(),), (LocalNorm(), OwnHead())], ids=["trained", "personalised"])
def test_own_models_are_scored_by_that_mean_too(stack):
    run = trained(trial(*stack, model=NormNet(), protocol={"rounds": 2, "lr": 0.01}))
    own: dict[int, torch.Tensor] = {}
    losses = []
    load = run.trainer.load
    scores = score_stages(run)["validation"]
    for client in range(1, 6):
        load(run.state, run.state.row(client))
        own[client] = right_answers(run, client)
        losses.append(score_loaded(run.trainer, client).loss)
    assert scores["accuracy.trained"] == pytest.approx(100 * float(torch.cat(list(own.values())).double().mean()))
    assert scores["loss.trained"] == pytest.approx(np.average(losses, weights=list(map(len, own.values()))))
    assert run.curve["accuracy"][-1] == scores["accuracy.trained"]
    each = [100 * float(one.double().mean()) for one in own.values()]
    assert np.std(each) > 0
    if len(stack) == 1:
        assert scores["accuracy"] == scores["accuracy.trained"] != pytest.approx(scores["client_accuracy"])
        assert scores["client_accuracy"] == pytest.approx(np.mean(each))


def test_domains_of_held_out_images_are_scored():
    run = trained(trial(dataset=DomainBlobs(), partition=IID(), protocol={"rounds": 1, "lr": 0.01}))
    scores = score_stages(run)["validation"]
    run.trainer.load(run.state, run.state.first_row)
    held = run.trainer.data.test
    right = evaluate(run.trainer, held).right.double()
    each = [100 * float(right[held.domain == domain].mean()) for domain in range(3)]
    assert [scores[f"domain_accuracy.{name}"] for name in DOMAINS] == pytest.approx(each)
    assert scores["domain_accuracy"] == pytest.approx(np.mean(each))
    assert len(set(each)) > 1


@pytest.mark.parametrize(("cell", "images"), [(trial(), "validation"), (toy_cell(), "test")], ids=["trial", "result"])
def test_a_loss_that_is_no_number_is_that_of_its_images(tmp_path, monkeypatch, cell, images):
    monkeypatch.setattr(evaluation, "evaluate_global", lambda *_: Score(torch.ones(3) > 0, float("nan")))
    assert run_cell(cell, how(tmp_path))["reason"] == f"round 1: the {images} loss is nan"


# training -------------------------------------------------------------------------------------------


def test_held_out_images_train_no_client():
    for stack in ((FedAvg(),), (Centralized(),)):
        data = start(trial(*stack)).trainer.data
        held = {image.numpy().tobytes() for image in data.test.x}
        for client in range(data.clients):
            batches = [x for x, _ in data.epoch(client, 0, 0)]
            assert sum(map(len, batches)) == data.size(client)
            kept = {image.numpy().tobytes() for image in data.train.x[data.train_indices(client)]}
            assert kept.isdisjoint(held)
    assert len(data.test) + len(data.train_indices(0)) == 94


def test_a_result_has_all_its_images_back():
    data = start(toy_cell(protocol={"validation": 0.0})).trainer.data
    assert sum(map(data.size, range(6))) == 94
    assert torch.equal(data.test.x, Blobs().prepare(None).test.x)


def test_shares_count_what_is_trained_on(tmp_path):
    record = run_cell(trial(diagnostics=Diagnostics(shares=True)), how(tmp_path))
    assert np.sum(record["diagnostics"]["shares"]) == 94 - record["scores"]["validation"]["images"]


def test_shares_are_those_of_the_clients_although_one_place_trains_on_all(tmp_path):
    cells = [toy_cell(*method, diagnostics=Diagnostics(shares=True)) for method in ([], [Centralized()])]
    found = [run_cell(cell, how(tmp_path))["diagnostics"]["shares"] for cell in cells]
    assert found[0] == found[1]


@pytest.mark.parametrize("executor", ["vmap", "graph"])
def test_executors_agree_on_a_trial(executor, monkeypatch):
    monkeypatch.setattr(Graph, "machine", Tapes)
    cell = trial(protocol={"precision": "float64"})
    there, here = (trained(cell, executor=name) for name in ("loop", executor))
    for path, leaf in there.state.pack().items():
        assert torch.allclose(leaf, here.state.pack()[path], rtol=1e-9, atol=1e-11)
    assert score_stages(here)["validation"] == pytest.approx(score_stages(there)["validation"])


@pytest.mark.parametrize("stack", [(FedAvg(), Sphere()), (LocalHead(),)], ids=["calibrated", "own heads"])
def test_a_trial_goes_on_where_it_stopped(tmp_path, stack):
    cell, path = trial(*stack), tmp_path / "checkpoint"
    first = start(cell)
    first.advance()
    save(first, path)
    second = Run(cell, how())
    assert resume(second, path)
    while not second.finished:
        second.advance()
    whole = trained(cell)
    assert weights(second) == weights(whole)
    assert (second.curve, score_stages(second)) == (whole.curve, score_stages(whole))


def test_a_trial_takes_no_trained_model_of_a_result(tmp_path):
    run_cell(toy_cell(FedAvg()), how(tmp_path))
    record = run_cell(trial(FedAvg(), Sphere()), how(tmp_path))
    assert "trained_by" not in record["provenance"]
    assert trial(FedAvg(), CCVR()).train_key == trial(FedAvg()).key != toy_cell(FedAvg()).key


def test_a_share_that_leaves_nothing_is_refused_before_training():
    with pytest.raises(UserError, match=r"protocol.validation=0.9 leaves client 1 none of its 4 images; lower it"):
        start(trial(share=0.9))


# records --------------------------------------------------------------------------------------------

WRONG = {
    "a score of test images": (lambda r: r["scores"].update(trained={"accuracy": 1.0}), "but has scores.trained"),
    "a best round": (lambda r: r["scores"].update(best={"accuracy": 1.0, "round": 1}), "but has scores.best"),
    "no scores": (lambda r: r["scores"].clear(), "no scores.validation"),
    "no accuracy": (lambda r: r["scores"]["validation"].pop("accuracy"), "scores.validation lacks accuracy"),
    "another stage": (lambda r: r["scores"]["validation"].update(accuracy=1.5), "scores.validation.accuracy is 1.5"),
    "another end": (lambda r: r["curve"]["accuracy"].__setitem__(-1, 1.5), "its curve ends with 1.5"),
    "no stage": (lambda r: r["scores"]["validation"].pop("accuracy.calibrated"), "its digests.stages are of"),
}


@pytest.mark.parametrize(("edit", "message"), WRONG.values(), ids=WRONG)
def test_a_record_of_a_trial_that_contradicts_itself_is_none(tmp_path, edit, message):
    record = run_cell(trial(FedAvg(), Sphere()), how(tmp_path))
    edit(record)
    with pytest.raises(CorruptFile, match=message):
        validate(record)


def test_a_result_has_no_scores_of_held_out_images(tmp_path):
    record = run_cell(toy_cell(), how(tmp_path))
    record["scores"]["validation"] = {"accuracy": 50.0}
    with pytest.raises(CorruptFile, match=r"it has scores.validation, but its spec.protocol.validation is 0"):
        validate(record)
