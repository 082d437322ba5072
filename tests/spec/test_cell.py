import hashlib
import json

import pytest

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.spec.cell import key_of
from fedspan.methods.addons.feddecorr import FedDecorr
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.methods.algorithms.fednova import FedNova
from fedspan.methods.algorithms.fedprox import FedProx
from fedspan.tasks.datasets.digits import Digits
from fedspan.tasks.fleets.dropout import Dropout
from tests.helpers import toy_cell


def test_a_key_is_the_head_of_the_sha256_of_canonical_json():
    assert key_of({"b": 1.5, "a": [1, "x"]}) == hashlib.sha256(b'{"a":[1,"x"],"b":1.5}').hexdigest()[:20]


def test_the_order_of_settings_leaves_no_trace():
    assert key_of({"a": {"x": 1, "y": 2}, "b": 3}) == key_of({"b": 3, "a": {"y": 2, "x": 1}})


def test_what_survives_json_unchanged():
    cell = toy_cell(FedProx(mu=0.1), FedDecorr())
    assert json.loads(json.dumps(cell.what)) == cell.what
    assert key_of(cell.what) == cell.key


def test_a_setting_that_came_later_is_in_the_key_only_where_it_is_not_the_default():
    before, default, other = (
        toy_cell(algorithm) for algorithm in (FedNova(), FedNova(statistics=False), FedNova(True))
    )
    assert before.key == default.key == key_of({**before.what, "algorithm": {"name": "fednova", "version": 1}})
    assert default.settings["algorithm"] == {"name": "fednova", "version": 1, "statistics": False}
    assert other.key == key_of({**before.what, "algorithm": {"name": "fednova", "version": 1, "statistics": True}})
    assert other.settings["algorithm"] == other.what["algorithm"]


def test_a_setting_of_the_protocol_that_came_later_is_in_the_key_only_where_it_is_not_the_default():
    before, default, trial = (toy_cell(protocol=more) for more in ({}, {"validation": 0.0}, {"validation": 0.15}))
    assert before.key == default.key
    assert not {"validation", "sampling"} & set(before.what["protocol"])
    assert default.settings["protocol"] == {**before.what["protocol"], "validation": 0.0, "sampling": "fixed"}
    assert trial.what["protocol"] == {**before.what["protocol"], "validation": 0.15}
    assert trial.train_key == trial.key != before.key


def test_the_label_names_what_differs_from_the_defaults():
    cell = toy_cell(FedProx(), FedDecorr(beta=0.5), seed=3)
    assert cell.label == "fedprox + feddecorr(beta=0.5) on blobs/ragged, 6 clients, seed 3"


def test_the_label_names_a_fleet_that_acts():
    cell = toy_cell(fleet=Dropout(rate=0.25))
    assert cell.label == "fedavg on blobs/ragged, 6 clients, dropout(rate=0.25), seed 0"


def test_the_label_of_a_trial_tells_its_learning_rate():
    cell = toy_cell(protocol={"validation": 0.15, "lr": 0.0123456})
    assert cell.label == "fedavg on blobs/ragged, 6 clients, lr 0.0123, seed 0"


def test_a_negative_limit_is_refused_before_anything_starts():
    with pytest.raises(UserError, match=r"dataset\.limit must be 0 \(all\) or more, got -5"):
        toy_cell(dataset=Digits(limit=-5))


@pytest.mark.parametrize("participation", [0.0, -0.1, 1.01])
def test_participation_is_a_share(participation):
    with pytest.raises(UserError, match=rf"participation must lie in \(0, 1\], got {participation}"):
        toy_cell(participation=participation)


@pytest.mark.parametrize(("name", "value", "rule"), [("clients", 0, "at least 1"), ("seed", -1, "not be negative")])
def test_numbers_out_of_range_are_refused_by_name(name, value, rule):
    with pytest.raises(UserError, match=f"{name} must .*{rule}, got {value}"):
        toy_cell(FedAvg(), **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("rounds", 0), ("local_epochs", 0), ("batch_size", 0), ("eval_every", 0), ("lr", 0.0), ("lr", -1.0),
     ("momentum", 1.0), ("momentum", -0.1), ("weight_decay", -1e-9),
     ("validation", -0.1), ("validation", 1.0)],
)  # fmt: skip
def test_impossible_protocols_are_refused_by_name(name, value):
    with pytest.raises(UserError, match=rf"protocol\.{name} must .*, got {value}"):
        toy_cell(protocol={name: value})
