"""Methods that leave weights with their clients, or never train some: what moves, what travels, what is scored."""

import numpy as np
import pytest
import torch

from fedspan.benchmark.training.evaluation import score
from fedspan.benchmark.training.saving import resume, save
from fedspan.benchmark.training.scoring import score_stages
from fedspan.methods.algorithms.fedbabu import FedBABU
from fedspan.methods.algorithms.fedbn import FedBN
from fedspan.methods.algorithms.fedper import FedPer
from fedspan.methods.algorithms.fedrep import FedRep
from fedspan.methods.algorithms.lg_fedavg import LGFedAvg
from fedspan.methods.algorithms.local_only import LocalOnly
from tests.helpers import start, toy_cell, trained, weights
from tests.methods.by_hand import (
    agree,
    batches,
    fresh,
    mean,
    minus,
    norm,
    numbers,
    plain_gradient,
    sgd,
    sizes,
    trained_by_hand,
)
from tests.toys import NormNet, PlainNet, in_head

CLIENTS = range(6)
PERSONAL = [LGFedAvg(), FedPer(), FedRep(head_epochs=2), LocalOnly()]
by_name = {"ids": lambda algorithm: algorithm.name}


def stays(algorithm, path):
    """Tell whether a weight of the plain net stays with its client."""
    return {"lg_fedavg": not in_head(path), "local_only": True}.get(algorithm.name, in_head(path))


def local_round(algorithm, run, w, client, round):
    """Return the client's weights after its round, in NumPy."""
    if algorithm.name != "fedrep":
        return trained_by_hand(run, w, client, round)[0]
    p = run.cell.protocol
    rest = p.lr_at(round), p.momentum, p.weight_decay
    w, _ = sgd(w, batches(run, client, round, range(2)), plain_gradient, *rest, moves=in_head)
    body = batches(run, client, round, range(2, 2 + p.local_epochs))
    return sgd(w, body, plain_gradient, *rest, moves=lambda path: not in_head(path))[0]


@pytest.mark.parametrize("algorithm", PERSONAL, **by_name)
def test_all_rounds_move_own_weights_alone_and_average_the_others(algorithm):
    run = fresh(algorithm)
    common = numbers(run.state.params)
    own = {client: {path: w for path, w in common.items() if stays(algorithm, path)} for client in CLIENTS}
    while not run.finished:
        chosen, ends = run.participants(), []
        for client in chosen:
            end = local_round(algorithm, run, common | own[client], client, run.state.round)
            own[client] = {path: end[path] for path in own[client]}
            ends.append({path: w for path, w in end.items() if path not in own[client]})
        common |= mean(ends, sizes(run, chosen))
        run.advance()
        travelling = {path for path in common if not stays(algorithm, path)}
        if travelling:
            agree({p: run.state.params[p] for p in travelling}, {p: common[p] for p in travelling})
        for client in CLIENTS:
            agree(run.state.row(client).own, own[client])


def test_fedbabu_trains_and_averages_the_body_under_the_first_head():
    run = fresh(FedBABU())
    w = numbers(run.state.params)
    for round in range(run.cell.protocol.rounds):
        chosen = run.participants()
        ends = [trained_by_hand(run, w, client, round, moves=lambda path: not in_head(path))[0] for client in chosen]
        w = mean(ends, sizes(run, chosen))
        run.advance()
    agree(run.state.params, w)
    assert run.state.rows == {}, "the head is the same everywhere"
    assert score(run.trainer, run.state)["accuracy"] is not None


def test_fedbn_averages_all_but_batchnorm():
    run = start(toy_cell(FedBN(), model=NormNet(), protocol={"precision": "float64"}))
    norm = {f"body.1.{name}" for name in ("weight", "bias", "running_mean", "running_var")}
    before = numbers(run.state.params)
    done = {client: run.trainer.train(run.state, client) for client in CLIENTS}
    run.advance()
    assert set(run.state.first_row.own) == norm
    others = set(before) - norm
    moved = mean([numbers(d.delta) for d in done.values()], [d.n for d in done.values()])
    assert set(moved) == others
    agree(
        {p: run.state.params[p] - torch.from_numpy(before[p]) for p in others},
        {p: moved[p] for p in others}, 1e-9,
    )  # fmt: skip
    for client in CLIENTS:
        agree(run.state.row(client).own, numbers(done[client].row.own))
    apart = minus(numbers(run.state.row(4).own), numbers(run.state.row(5).own))
    assert all((leaf != 0).any() for leaf in apart.values()), "two clients have the same BatchNorm"


def test_fedbn_without_batchnorm_is_fedavg_bit_for_bit():
    mine, plain = trained(toy_cell(FedBN(), model=PlainNet())), trained(toy_cell(model=PlainNet()))
    assert weights(mine) == weights(plain)
    assert score_stages(mine) == score_stages(plain)


NUMBERS = {"body": (72 + 1) * 5, "head": (5 + 1) * 3}  # of the plain net
NORM_NET = (18 + 1) * 4 + (16 + 1) * 3


@pytest.mark.parametrize(
    ("algorithm", "model", "numbers_sent"),
    [
        (LGFedAvg(), PlainNet(), NUMBERS["head"]),
        (FedPer(), PlainNet(), NUMBERS["body"]),
        (FedRep(), PlainNet(), NUMBERS["body"]),
        (FedBABU(), PlainNet(), NUMBERS["body"]),
        (LocalOnly(), PlainNet(), 0),
        (LocalOnly(), NormNet(), 0),
        (FedBN(), NormNet(), NORM_NET),
    ],
    ids=lambda part: getattr(part, "name", None),
)
def test_only_what_is_shared_travels(algorithm, model, numbers_sent):
    counted = trained(toy_cell(algorithm, model=model, participation=0.5)).meter.as_dict()["bytes"]
    assert counted["up_per_client_round"] == counted["down_per_client_round"] == 4 * numbers_sent


@pytest.mark.parametrize("algorithm", [*PERSONAL, FedBN()], **by_name)
def test_without_a_global_model_the_clients_own_are_scored(algorithm):
    run = trained(toy_cell(algorithm, model=NormNet()))
    scores = score_stages(run)["trained"]
    assert scores["accuracy"] is None
    assert 0 < scores["client_accuracy"] <= 100
    by_hand = []
    for client in CLIENTS:
        run.trainer.load(run.state, run.state.row(client))
        net = run.trainer.net.eval()
        with torch.no_grad():
            x = torch.cat([x for x, _ in run.trainer.data.in_order(run.trainer.data.test, 30)])
            by_hand.append(100 * float((net(x)[1].argmax(1) == run.trainer.data.test.y).double().mean()))
    assert scores["client_accuracy"] == pytest.approx(np.mean(by_hand))
    assert scores["client_accuracy_std"] == pytest.approx(np.std(by_hand))


def test_alone_a_client_learns_the_same_whoever_else_there_is():
    both, alone = start(toy_cell(LocalOnly())), start(toy_cell(LocalOnly()))
    for _ in range(3):
        both.advance()
        sums, _ = alone.executor.run(alone.state, [4])
        alone.aggregate(sums)
        alone.state.round += 1
    assert {p: w.tolist() for p, w in both.state.row(4).own.items()} == {
        p: w.tolist() for p, w in alone.state.row(4).own.items()
    }


# a warm-up ----------------------------------------------------------------------------------------

WARM = {"rounds": 5, "precision": "float64"}  # 0.5 of them: two rounds


def warm(share=0.5, **parts):
    return toy_cell(LGFedAvg(warm_up=share), **({"model": NormNet(), "participation": 0.5, "protocol": WARM} | parts))


def test_a_warm_up_is_fedavg_and_then_the_bodies_part():
    run, plain = start(warm()), start(toy_cell(model=NormNet(), participation=0.5, protocol=WARM))
    for _ in range(2):
        run.advance()
        plain.advance()
    agree(run.state.params | run.state.buffers, numbers(plain.state.params | plain.state.buffers), 0.0)
    assert not run.state.rows
    assert run.meter.bytes_up == plain.meter.bytes_up
    assert run.meter.bytes_down == plain.meter.bytes_down
    body = {path: leaf for path, leaf in numbers(run.state.params).items() if not in_head(path)}
    chosen, before, received = run.participants(), run.meter.bytes_up, run.meter.bytes_down
    run.advance()
    model = sum(leaf.nbytes for leaf in (run.state.params | run.state.buffers).values())
    assert run.meter.bytes_down - received == len(chosen) * model, "the averaged body is sent once more"
    assert sorted(run.state.rows) == chosen
    agree({path: leaf for path, leaf in run.state.params.items() if not in_head(path)}, body, 0.0)
    for client in CLIENTS:
        own = run.state.row(client).own
        moved = norm(minus({path: numbers(own)[path] for path in body}, body))
        assert (moved > 0) == (client in chosen), "who has not trained since begins from the warm model"
    head = sum(leaf.nbytes for path, leaf in run.state.params.items() if in_head(path))
    assert run.meter.bytes_up - before == len(chosen) * head
    again, received = run.participants(), run.meter.bytes_down
    run.advance()
    late = len(set(again) - set(chosen))
    assert 0 < late < len(again)
    assert run.meter.bytes_down - received == late * model + (len(again) - late) * head


def test_a_warm_up_scores_what_each_client_would_use():
    run = trained(warm())
    assert all(accuracy is None for accuracy in run.curve["accuracy"])
    early = start(warm())
    early.advance()
    plain = trained(toy_cell(model=NormNet(), participation=0.5, protocol=WARM | {"rounds": 1}))
    assert score(early.trainer, early.state)["client_accuracy"] == score(plain.trainer, plain.state)["accuracy"]
    assert score(early.trainer, early.state)["loss"] == pytest.approx(
        score(plain.trainer, plain.state)["loss"], rel=1e-12
    )


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_a_warm_up_survives_interruptions_and_stacking(executor, tmp_path):
    straight, resumed = trained(warm()), start(warm(), executor=executor)
    while not resumed.finished:
        resumed.advance()
        save(resumed, tmp_path / "checkpoint")
        resumed = start(warm(), executor=executor)
        assert resume(resumed, tmp_path / "checkpoint")
    agree(resumed.state.pack(), numbers(straight.state.pack()), 0.0 if executor == "loop" else 1e-10)
    assert score_stages(resumed)["trained"]["client_accuracy"] == score_stages(straight)["trained"]["client_accuracy"]


def test_without_a_warm_up_lg_fedavg_and_its_key_are_as_before():
    assert "warm_up" not in LGFedAvg().what()
    assert LGFedAvg(warm_up=0.8).what()["warm_up"] == 0.8


def test_fedreps_body_trains_for_epochs_of_its_own_or_the_protocols():
    assert [[epochs for epochs, _ in FedRep(body_epochs=body).phases(5)] for body in (0, 1)] == [[10, 5], [10, 1]]
    run = start(toy_cell(FedRep(head_epochs=2, body_epochs=1)))
    done = run.trainer.train(run.state, 5)
    assert done.images == 3 * run.trainer.data.size(5)
