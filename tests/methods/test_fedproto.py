import numpy as np
import pytest
import torch

from fedspan.benchmark.training import stages
from fedspan.benchmark.training.scoring import score_stages
from fedspan.methods.algorithms.fedproto import FedProto
from fedspan.methods.algorithms.local_only import LocalOnly
from tests.helpers import start, toy_cell, trained
from tests.methods.by_hand import (
    DOUBLE,
    PLAIN,
    ByClass,
    agree,
    batches,
    cross_entropy_slope,
    fresh,
    norm,
    numbers,
    sgd,
)

CLIENTS = range(6)


def released_round(run, w, client, known, prototypes, weight):
    """Return a client's weights, and the features of its last epoch by class, as `update_weights_het` computes them.

    `yuetan031/FedProto`, lib/update.py, again in NumPy; SGD, momentum and batches are the protocol's.
    """
    p, seen = run.cell.protocol, {}

    def gradient(w, x, y):
        protos = PLAIN.features(w, x)
        if number[0] % per_epoch == 0:
            seen.clear()  # agg_protos_label = {}
        number[0] += 1
        for label, row in zip(y, protos, strict=True):
            seen.setdefault(int(label), []).append(row)
        proto_new = np.array([prototypes[label] if known[label] else row for label, row in zip(y, protos, strict=True)])
        to_features = weight * 2 * (protos - proto_new) / protos.size
        return PLAIN.gradient(w, x, cross_entropy_slope(PLAIN.logits(w, x), y), to_features)

    mine = batches(run, client, run.state.round)
    number, per_epoch = [0], len(mine) // p.local_epochs
    end, _ = sgd(w, mine, gradient, p.lr_at(run.state.round), p.momentum, p.weight_decay)
    return end, seen


@pytest.mark.parametrize("weight", [1.0, 5.0])
def test_all_rounds_are_those_of_the_released_code(weight):
    """Every client takes part, as there; some hold a single class, so that classes differ in who holds them."""
    run = fresh(FedProto(weight=weight), partition=ByClass(), participation=1.0, protocol={"local_epochs": 3})
    models = dict.fromkeys(CLIENTS, numbers(run.state.params))
    prototypes, known = np.zeros((3, 5)), np.zeros(3, dtype=bool)
    while not run.finished:
        local_protos = {}
        for idx in CLIENTS:
            models[idx], protos = released_round(run, models[idx], idx, known, prototypes, weight)
            local_protos[idx] = {label: sum(rows) / len(rows) for label, rows in protos.items()}  # agg_func
        for label in range(3):  # proto_aggregation
            held = [protos[label] for protos in local_protos.values() if label in protos]
            prototypes[label], known[label] = sum(held) / len(held), True
        run.advance()
        agree({"p": run.state.server["fedproto"]["prototypes"]}, {"p": prototypes})
        for client in CLIENTS:
            agree(run.state.row(client).own, models[client])


@pytest.mark.parametrize("mean", ["clients", "samples"])
def test_prototypes_of_the_paper_are_means_under_the_last_weights(mean):
    run = fresh(FedProto(prototypes="final", mean=mean), participation=0.5, protocol={"rounds": 1})
    chosen, data = run.participants(), run.trainer.data
    run.advance()
    sums, weights = np.zeros((3, 5)), np.zeros(3)
    for client in chosen:
        images = data.train.take(data.indices[client])
        x = data.normalise(images.x).numpy().reshape(len(images), -1)
        features = PLAIN.features(numbers(run.state.row(client).own), x)
        for label in range(3):
            mine = features[images.y.numpy() == label]
            if len(mine):
                share = len(mine) if mean == "samples" else 1
                sums[label] += share * mine.mean(0)
                weights[label] += share
    agree({"p": run.state.server["fedproto"]["prototypes"]}, {"p": sums / weights[:, None]})


def test_only_prototypes_travel():
    run = trained(toy_cell(FedProto(), participation=0.5))
    counted = run.meter.as_dict()["bytes"]
    assert counted["up_per_client_round"] == counted["down_per_client_round"] == 4 * (3 * 5 + 3)


def test_without_weight_clients_train_alone():
    mine, alone = (trained(toy_cell(a)) for a in (FedProto(weight=0.0), LocalOnly()))
    for client in CLIENTS:
        agree(mine.state.row(client).own, numbers(alone.state.row(client).own), 0.0)
    assert mine.curve == alone.curve


def test_a_class_that_no_participant_holds_keeps_its_prototype():
    run = start(toy_cell(FedProto(), partition=ByClass(), protocol=DOUBLE))
    found = []
    for clients in ([0, 1, 2], [0, 3]):  # client k holds images of class k mod 3 alone
        sums, _ = run.executor.run(run.state, clients)
        run.aggregate(sums)
        run.state.round += 1
        found.append(numbers(run.state.server["fedproto"]))
    before, now = found
    assert now["known"].tolist() == [1, 1, 1]
    assert not np.allclose(now["prototypes"][0], before["prototypes"][0])
    assert np.array_equal(now["prototypes"][1:], before["prototypes"][1:])


def test_a_strong_weight_draws_features_to_the_prototypes():
    def gap(weight):
        run = fresh(FedProto(weight=weight), participation=1.0, protocol={"rounds": 3})
        while not run.finished:
            run.advance()
        data, prototypes = run.trainer.data, numbers(run.state.server["fedproto"])["prototypes"]
        images = data.train.take(data.indices[5])
        x = data.normalise(images.x).numpy().reshape(len(images), -1)
        features = PLAIN.features(numbers(run.state.row(5).own), x)
        return norm({"f": features - prototypes[images.y.numpy()]})

    assert gap(20.0) < 0.8 * gap(0.0)


def test_the_nearest_prototype_is_the_answer_of_the_personalised_stage():
    run = trained(toy_cell(FedProto(), protocol=DOUBLE))
    prototypes, data = numbers(run.state.server["fedproto"])["prototypes"], run.trainer.data
    x = torch.cat([x for x, _ in data.in_order(data.test, 30)]).numpy().reshape(30, -1)
    right = []
    for client in CLIENTS:
        features = PLAIN.features(numbers(run.state.row(client).own), x)
        nearest = ((features[:, None] - prototypes) ** 2).sum(2).argmin(1)
        right.append(100 * np.mean(nearest == data.test.y.numpy()))
    assert score_stages(run)["personalised"]["client_accuracy"] == pytest.approx(np.mean(right))


def test_clients_that_search_among_their_own_classes_answer_with_those():
    run = trained(toy_cell(FedProto(nearest="own"), partition=ByClass(), protocol=DOUBLE))
    data = run.trainer.data
    for client in range(6):
        stages.personalise(run.trainer, run.state, client, 0)
        with torch.no_grad():
            answers = run.trainer.net.eval()(data.normalise(data.test.x))[1].argmax(1)
        assert set(answers.tolist()) == set(data.train.y[data.indices[client]].tolist())


def test_a_class_without_a_prototype_is_nobodys_nearest():
    run = start(toy_cell(FedProto(), partition=ByClass(), protocol=DOUBLE))
    sums, _ = run.executor.run(run.state, [1, 4])  # both hold class 1 alone
    run.aggregate(sums)
    run.state.round += 1
    data, answers = run.trainer.data, set()
    for client in range(6):
        stages.personalise(run.trainer, run.state, client, 0)
        with torch.no_grad():
            answers |= set(run.trainer.net.eval()(data.normalise(data.test.x))[1].argmax(1).tolist())
    assert answers == {1}
