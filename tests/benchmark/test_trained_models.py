"""Cells that differ only in what comes after training share one trained model."""

import dataclasses
import os

import pytest
import torch

from fedspan.benchmark.component import AFTER_TRAINING, Component, acts_in
from fedspan.benchmark.records import checkpoint, provenance
from fedspan.benchmark.records import results as folder
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.registry import plugins
from fedspan.benchmark.running.cell_run import run_cell
from fedspan.benchmark.running.grid import sharing_last
from fedspan.benchmark.spec.diagnostics import Diagnostics
from fedspan.benchmark.spec.plan import PlannedCell
from fedspan.benchmark.training import run as run_module
from fedspan.benchmark.training.local import LocalTrainer
from fedspan.methods.addons.ccvr import CCVR
from fedspan.methods.addons.feddecorr import FedDecorr
from fedspan.methods.addons.ffc import FFC
from fedspan.methods.addons.oracle_head import OracleHead
from fedspan.methods.addons.personal_head import PersonalHead
from fedspan.methods.addons.spherefed import SphereFed
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.methods.algorithms.moon import Moon
from tests.helpers import how, numbers, toy_cell
from tests.toys import Contrast, LocalNorm, NormNet, Scaffold, ServerMomentum, toy

AFTERWARDS = (FFC(), CCVR(), OracleHead(), PersonalHead())


@pytest.fixture
def no_training(monkeypatch):
    def refuse(*_):
        raise AssertionError("it trained")

    monkeypatch.setattr(LocalTrainer, "train", refuse)


def the_trained(folder, cell):
    return Results(how(folder).results).trained_model_path(cell.train_key)


# which cells share --------------------------------------------------------------------------------


@pytest.mark.parametrize("component", AFTERWARDS, ids=lambda c: c.name)
def test_what_acts_only_after_training_does_not_change_the_training(component):
    bare, more = toy_cell(None, FedDecorr()), toy_cell(None, FedDecorr(), component)
    assert more.train_key == bare.key
    assert more.key != bare.key
    assert bare.train_key == bare.key


@pytest.mark.parametrize("component", [FedDecorr(), SphereFed(), SphereFed(ffc=False), FFC(every=2)], ids=str)
def test_what_takes_part_in_training_does(component):
    assert toy_cell(None, component).train_key != toy_cell().key


@pytest.mark.parametrize(
    "rule", [{"warm_up": 0.5}, {"moves_statistics": True}, {"init_per_client": True}, {"one_client": True}], ids=str
)
def test_a_rule_of_training_is_training_although_no_hook_is(rule):
    assert not type("Idle", (FFC,), {})().trains
    assert type("Ruled", (FFC,), rule)().trains


def test_no_registered_component_is_taken_for_one_that_acts_only_afterwards():
    """Those that say so override nothing that training calls."""
    shared = {name for name, cls in plugins("addon").items() if not cls().trains}
    assert shared == {component.name for component in AFTERWARDS}
    for component in AFTERWARDS:
        assert not any(acts_in(component, hook) for hook in ("net", "init", "loss", "penalty", "grads", "server"))
        assert any(acts_in(component, hook) for hook in AFTER_TRAINING)


# sharing ------------------------------------------------------------------------------------------

STACKS = {
    **{component.name: (FedAvg(), component) for component in AFTERWARDS},
    "scaffold": (Scaffold(), FFC()),
    "client memory": (FedAvg(), Contrast(), CCVR()),
    "own weights": (LocalNorm(), PersonalHead()),
    "two of them": (FedAvg(), FFC(), PersonalHead(by="ffc")),
}


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS.keys())
def test_a_shared_model_gives_the_record_of_training_again_bit_for_bit(stack, tmp_path, monkeypatch):
    spectra = Diagnostics(spectra=True, clients=(5,), top=4)
    cell = toy_cell(*stack, model=NormNet(), participation=0.5, seed=3, diagnostics=spectra)
    monkeypatch.setattr(run_module, "participants", lambda clients, *_: [1, 4, 5])
    again = run_cell(cell, how(tmp_path / "again"))
    run_cell(cell.training, how(tmp_path / "shared"))
    monkeypatch.setattr(LocalTrainer, "train", None)
    shared = run_cell(cell, how(tmp_path / "shared"))
    assert numbers(shared) == numbers(again)
    assert shared["provenance"]["trained_by"] == cell.train_key
    assert "trained_by" not in again["provenance"]


@toy("addon", "toy_tuned")
class Tuned(Component):
    """Each client takes one step of its own after training, which may need the trees of the loss."""

    def own(self, params, local):
        found, statistics = local.learn_at(params, local.buffers, torch.arange(local.n))
        return {
            path: leaf - 0.1 * found.get(path, torch.zeros_like(leaf)) for path, leaf in params.items()
        } | statistics


@pytest.mark.parametrize("algorithm", [Moon(projection=()), Scaffold()], ids=["moon", "scaffold"])
@pytest.mark.parametrize("order", ["bare first", "tuned first"])
def test_a_model_whose_file_lacks_the_trees_of_a_later_stage_is_not_taken(tmp_path, algorithm, order):
    """With and without the add-on a state's digests cover other trees."""
    bare, tuned = toy_cell(algorithm), toy_cell(algorithm, Tuned())
    assert tuned.train_key == bare.key
    alone = {cell.key: run_cell(cell, how(tmp_path / cell.key)) for cell in (bare, tuned)}
    for cell in (bare, tuned) if order == "bare first" else (tuned, bare):
        found = run_cell(cell, how(tmp_path / "shared"))
        assert numbers(found) == numbers(alone[cell.key])
        assert found["digests"] == alone[cell.key]["digests"]
    assert not list((tmp_path / "shared").rglob("set_aside/*"))


def test_the_first_to_train_serves_all_also_without_the_bare_cell(tmp_path, monkeypatch):
    cells = [toy_cell(None, component) for component in AFTERWARDS]
    first = run_cell(cells[0], how(tmp_path))
    monkeypatch.setattr(LocalTrainer, "train", None)
    for cell in cells[1:]:
        assert run_cell(cell, how(tmp_path))["provenance"]["trained_by"] == first["key"]


def test_the_bare_cell_itself_always_trains(tmp_path):
    """So that its record, deleted, is truly computed again."""
    cell, visits = toy_cell(), []
    for _ in range(2):
        run_cell(cell, how(tmp_path), lambda progress: visits.append(progress.round))
        Results(how(tmp_path).results).path(cell.key).unlink()
    assert visits.count(0) == 2 * 6


def test_a_shared_model_that_is_pruned_while_it_is_taken_leaves_no_empty_file(tmp_path, monkeypatch):
    cell, load = toy_cell(None, FFC()), checkpoint.load
    run_cell(cell.training, how(tmp_path))

    def load_and_prune(path, key):
        found = load(path, key)
        path.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(checkpoint, "load", load_and_prune)
    assert "trained_by" in run_cell(cell, how(tmp_path))["provenance"]
    assert not the_trained(tmp_path, cell).exists()


@pytest.mark.parametrize("changed", ["versions", "sources", "engine", "executor", "data"])
def test_a_model_of_other_code_or_data_is_not_taken(changed, tmp_path, monkeypatch):
    cell = toy_cell(None, FFC())
    run_cell(cell.training, how(tmp_path))
    if changed == "versions":
        monkeypatch.setattr(provenance, "versions", lambda: {"torch": "another"})
    elif changed == "sources":
        monkeypatch.setattr(provenance, "source_digests", lambda cell: {"algorithm:fedavg": "edited"})
    elif changed == "engine":
        monkeypatch.setattr(provenance, "engine_digest", lambda: "edited")
    elif changed == "data":
        prepare = type(cell.dataset).prepare
        monkeypatch.setattr(
            type(cell.dataset),
            "prepare",
            lambda self, cache: dataclasses.replace(prepare(self, cache), digest="0123abcd"),
        )
    where = how(tmp_path, executor="vmap" if changed == "executor" else "loop")
    assert "trained_by" not in run_cell(cell, where)["provenance"]


def test_a_model_whose_first_rounds_another_engine_computed_is_not_shared(tmp_path, monkeypatch):
    class PowerCut(BaseException):
        pass

    def cut_at(round):
        def cut(progress):
            if (progress.round, progress.client) == (round, 1):
                raise PowerCut

        return cut

    cell = toy_cell(None, FFC(), protocol={"rounds": 3})
    monkeypatch.setattr("fedspan.benchmark.training.saving.uncommitted", lambda cell: [])
    with monkeypatch.context() as earlier:
        earlier.setattr(provenance, "engine_digest", lambda: "earlier")
        with pytest.raises(PowerCut):
            run_cell(cell, how(tmp_path, checkpoint_seconds=0), cut_at(1))
    with pytest.raises(PowerCut):
        run_cell(cell, how(tmp_path, checkpoint_seconds=0), cut_at(2))
    record = run_cell(cell, how(tmp_path))
    assert record["status"] == "done"
    assert not the_trained(tmp_path, cell).exists()


def test_a_damaged_model_is_set_aside_and_the_cell_trains(tmp_path, caplog):
    cell = toy_cell(None, FFC())
    run_cell(cell.training, how(tmp_path))
    path = the_trained(tmp_path, cell)
    content = path.read_bytes()
    path.write_bytes(content[:-8] + bytes(8))
    damaged = run_cell(cell, how(tmp_path))
    assert "trained_by" not in damaged["provenance"]
    assert numbers(damaged) == numbers(run_cell(cell, how(tmp_path / "elsewhere")))
    assert list(Results(how(tmp_path).results).aside.iterdir())
    assert "is damaged" in caplog.text


def test_a_model_whose_curve_its_own_scores_contradict_is_set_aside_and_the_cell_trains(tmp_path, caplog):
    """Only the finished cell can tell: its scores are computed anew."""
    cell = toy_cell(None, FFC())
    run_cell(cell.training, how(tmp_path / "shared"))
    path = the_trained(tmp_path / "shared", cell)
    tensors, meta = checkpoint.load(path, cell.train_key)
    meta["curve"]["accuracy"][-1] /= 2
    checkpoint.save(path, cell.train_key, tensors, meta)
    assert numbers(run_cell(cell, how(tmp_path / "shared"))) == numbers(run_cell(cell, how(tmp_path / "alone")))
    assert f"{path} is damaged: its scores.trained.accuracy is" in caplog.text


def test_a_model_that_counts_no_training_is_none(tmp_path):
    cell = toy_cell(None, FFC())
    run_cell(cell.training, how(tmp_path / "shared"))
    path = the_trained(tmp_path / "shared", cell)
    tensors, meta = checkpoint.load(path, cell.train_key)
    checkpoint.save(path, cell.train_key, tensors, {**meta, "meter": {**meta["meter"], "flops": {}}})
    assert numbers(run_cell(cell, how(tmp_path / "shared"))) == numbers(run_cell(cell, how(tmp_path / "alone")))


def test_an_interrupted_cell_goes_on_from_its_own_checkpoint(tmp_path):
    class PowerCut(BaseException):
        pass

    def cut(progress):
        if progress.round == 1:
            raise PowerCut

    cell, visits = toy_cell(None, FFC()), []
    with pytest.raises(PowerCut):
        run_cell(cell, how(tmp_path, checkpoint_seconds=0), cut)
    run_cell(cell.training, how(tmp_path))
    again = run_cell(cell, how(tmp_path), lambda progress: visits.append(progress.round))
    assert min(visits) == 1
    assert "trained_by" not in again["provenance"]


# disk ---------------------------------------------------------------------------------------------


def test_only_so_many_bytes_of_models_are_kept_those_used_last(tmp_path, monkeypatch):
    cells = [toy_cell(None, FFC(), seed=seed) for seed in range(3)]
    run_cell(cells[0].training, how(tmp_path))
    size = the_trained(tmp_path, cells[0]).stat().st_size
    run_cell(cells[1].training, how(tmp_path))
    for age, cell in enumerate(cells[:2]):
        os.utime(the_trained(tmp_path, cell), (age, age))
    run_cell(cells[0], how(tmp_path))  # now used later than the second one
    monkeypatch.setattr(folder, "TRAINED_BYTES", 2.5 * size)
    run_cell(cells[2].training, how(tmp_path))
    assert [the_trained(tmp_path, cell).exists() for cell in cells] == [True, False, True]


def test_nothing_but_models_is_kept(tmp_path):
    """Neither variates nor memories: SCAFFOLD's are as large as its clients are many."""
    bare, scaffold = toy_cell(), toy_cell(Scaffold())
    for cell in (bare, scaffold):
        run_cell(cell, how(tmp_path))
    sizes = [the_trained(tmp_path, cell).stat().st_size for cell in (bare, scaffold)]
    assert abs(sizes[0] - sizes[1]) < 200


def test_a_folder_that_cannot_be_written_costs_the_copy_alone(tmp_path, caplog):
    results = Results(how(tmp_path).results)
    results.root.mkdir(parents=True)
    results.models.write_text("in the way")
    assert run_cell(toy_cell(), how(tmp_path))["status"] == "done"
    assert "cannot write" in caplog.text


# order --------------------------------------------------------------------------------------------


def test_in_a_grid_cells_that_can_start_from_a_trained_model_come_last_and_those_that_train_it_before():
    a, b = (toy_cell(None, seed=seed) for seed in (0, 1))
    with_ffc = [toy_cell(None, FFC(), seed=seed) for seed in (0, 1)]
    alone = [toy_cell(Scaffold(), component) for component in (FFC(), CCVR())]
    others = [toy_cell(ServerMomentum(), seed=seed) for seed in (0, 1)]
    planned = [PlannedCell(cell, {}, {}) for cell in (with_ffc[0], a, others[0], *alone, b, others[1], with_ffc[1])]
    order = [planned.cell for planned in sharing_last(planned)]
    assert order == [*others, a, alone[0], b, with_ffc[0], alone[1], with_ffc[1]]
