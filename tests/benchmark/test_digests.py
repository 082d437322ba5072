"""The digests of a record: which models they are of, and that they do not depend on how a cell ran."""

import copy
import hashlib

import pytest
import torch

from fedspan.benchmark import tree
from fedspan.benchmark.errors import CorruptFile
from fedspan.benchmark.records.results import Results
from fedspan.benchmark.records.validation import validate
from fedspan.benchmark.running.cell_run import Outcome, make_record, run_cell
from fedspan.benchmark.training import stages
from fedspan.benchmark.training.saving import resume
from fedspan.benchmark.training.scoring import score_stages
from fedspan.methods.addons.ffc import FFC
from fedspan.methods.addons.personal_head import PersonalHead
from fedspan.methods.algorithms.fedavg import FedAvg
from tests.helpers import how, start, toy_cell, trained, whole
from tests.toys import LocalNorm, NormNet, Scaffold, ServerMomentum


def digests(cell, folder, **more):
    return run_cell(cell, how(folder, **more))["digests"]


# of what they are ----------------------------------------------------------------------------------


def test_every_evaluated_round_has_a_digest_and_the_last_is_that_of_the_trained_model(tmp_path):
    found = digests(toy_cell(protocol={"rounds": 5, "eval_every": 2}), tmp_path)
    assert list(found["rounds"]) == ["2", "4", "5"]
    assert len(set(found["rounds"].values())) == 3
    assert found["stages"] == {"trained": found["rounds"]["5"]}


def test_a_digest_is_of_weights_and_statistics_and_of_nothing_that_only_further_rounds_need():
    run = trained(toy_cell(ServerMomentum(), model=NormNet()))
    before = run.state.digest()
    next(iter(run.state.server["toy_momentum"].values())).add_(1)
    assert run.state.digest() == before
    for part in (run.state.params, run.state.buffers):
        leaf = next(iter(part.values()))
        leaf[(0,) * leaf.ndim] += 1
        assert run.state.digest() != before
        before = run.state.digest()


def test_where_weights_stay_with_clients_those_of_every_client_count():
    run = trained(toy_cell(LocalNorm(), model=NormNet()))
    found = {run.state.digest()}
    for row in run.state.rows.values():
        next(iter(row.own.values())).add_(1)
        found.add(run.state.digest())
    assert len(found) == 1 + 6


def test_a_digest_does_not_depend_on_how_a_tensor_lies_in_memory():
    leaf = torch.randn(4, 3, 5, 5)
    odd = torch.empty(leaf.numel() + 1)[1:].view_as(leaf).copy_(leaf)
    same = (leaf, leaf.to(memory_format=torch.channels_last), leaf.mT.contiguous().mT, odd)
    assert len({tree.digest({"a": each}) for each in same}) == 1


def test_a_digest_is_written_down_so_that_it_means_the_same_next_year():
    leaf = torch.tensor([[1.0, -2.0]])
    expected = hashlib.sha256(b"a|torch.float32|(1, 2)|" + bytes.fromhex("0000803f000000c0")).hexdigest()
    assert tree.digest({"a": leaf}) == expected


def test_the_calibrated_model_has_a_digest_of_its_own(tmp_path):
    found = digests(toy_cell(FedAvg(), FFC()), tmp_path)["stages"]
    assert set(found) == {"trained", "calibrated"}
    assert found["trained"] == digests(toy_cell(), tmp_path)["stages"]["trained"] != found["calibrated"]


def test_the_personalised_digest_is_over_each_clients_model_in_their_order():
    run = trained(toy_cell(FedAvg(), PersonalHead()))
    expected = hashlib.sha256()
    score_stages(run)
    for client in range(run.cell.clients):
        stages.personalise(run.trainer, run.state, client, run.cell.seed)
        expected.update(tree.digest(run.trainer.params | run.trainer.buffers).encode())
    assert run.stage_digests["personalised"] == expected.hexdigest()


def test_a_diverged_cell_keeps_the_digests_up_to_there(tmp_path):
    found = digests(toy_cell(protocol={"lr": 1e30}), tmp_path)
    assert found == {"rounds": {}, "stages": {}}


# on what they do not depend ------------------------------------------------------------------------


class PowerCut(BaseException):
    pass


@pytest.mark.parametrize("stack", [(FedAvg(),), (Scaffold(),), (LocalNorm(), PersonalHead())], ids=str)
def test_a_resume_keeps_and_repeats_them(tmp_path, stack):
    def cut(progress):
        if progress.round == 2:
            raise PowerCut

    cell = toy_cell(*stack, model=NormNet())
    with pytest.raises(PowerCut):
        run_cell(cell, how(tmp_path / "cut", checkpoint_seconds=0), cut)
    again = start(cell)
    resume(again, Results(how(tmp_path / "cut").results).checkpoint(cell.key))
    assert list(again.round_digests) == ["1", "2"]
    assert digests(cell, tmp_path / "cut") == digests(cell, tmp_path / "whole")


def test_a_cell_that_starts_from_a_shared_model_has_those_of_training_again(tmp_path):
    cell = toy_cell(LocalNorm(), PersonalHead(), model=NormNet())
    digests(cell.training, tmp_path / "shared")
    shared = run_cell(cell, how(tmp_path / "shared"))
    assert shared["provenance"]["trained_by"] == cell.train_key
    assert shared["digests"] == digests(cell, tmp_path / "alone")
    assert list(shared["digests"]["rounds"]) == ["1", "2", "3"]


# in files ------------------------------------------------------------------------------------------


def test_what_is_no_digest_is_refused_and_a_record_of_before_is_none_the_worse(tmp_path):
    record = run_cell(toy_cell(), how(tmp_path))
    for damage in ([], {"rounds": {"1": "ab"}}, {"stages": ["a" * 64]}, {"stages": {"trained": None}}):
        with pytest.raises(CorruptFile, match=r"its digests"):
            validate(copy.deepcopy(record) | {"digests": damage})
    del record["digests"]
    validate(record)


def test_many_rounds_have_their_digests_beside_the_record(tmp_path):
    results, cell = Results(how(tmp_path).results), toy_cell(protocol={"rounds": 1000})
    record = whole(make_record(cell, how(tmp_path), Outcome(scores={"trained": {"accuracy": 1.0}}), None))
    rounds = list(range(1, 1001))
    record["curve"] = {"round": rounds, "accuracy": [1.0] * 1000}
    record["compute"] |= {"seconds_at_round": [1.0] * 1000, "bytes_at_round": [2] * 1000}
    record["scores"]["best"]["round"] = 1
    record["digests"] = {"rounds": dict.fromkeys(map(str, rounds), "a" * 64), "stages": {"trained": "b" * 64}}
    results.write(record)
    assert (results.records / f"{record['key']}.digests.json").exists()
    assert results.read(record["key"])["digests"] == record["digests"]
