"""Schedules, presets equal to the papers' numbers, and settings tuned for methods."""

import csv
from pathlib import Path

import pytest
import torch
import yaml

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.protocol import Protocol
from fedspan.benchmark.spec import compose, presets
from fedspan.benchmark.spec.plan import plan

ROOT = Path(__file__).resolve().parents[2]
with (ROOT / "results" / "paper" / "hyperparameters.csv").open() as file:
    FACTS = list(csv.DictReader(file))


def made(**overrides):
    """Return the planned cell of some overrides, __ for the dots."""
    [planned] = plan([{key.replace("__", "."): value for key, value in overrides.items()}])
    return planned.cell


# schedules ----------------------------------------------------------------------------------------


def by_torch(protocol, scheduler, **settings):
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=protocol.lr)
    schedule = scheduler(optimiser, **settings)
    rates = []
    for _ in range(protocol.rounds):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    return rates


def rates(protocol):
    return [protocol.lr_at(round) for round in range(protocol.rounds)]


def test_a_constant_rate_stays():
    assert rates(Protocol(rounds=5, lr=0.3)) == [0.3] * 5


def test_cosine_is_torchs_cosine_annealing():
    """SphereFed, App. A.3, footnote 4 names that class."""
    protocol = Protocol(rounds=100, lr=0.1, schedule="cosine")
    theirs = by_torch(protocol, torch.optim.lr_scheduler.CosineAnnealingLR, T_max=100)
    assert rates(protocol) == pytest.approx(theirs)


@pytest.mark.parametrize(("milestones", "factor"), [((40, 80), 0.1), ((1, 2, 50), 0.5), ((99,), 2.0)])
def test_multistep_is_torchs(milestones, factor):
    protocol = Protocol(rounds=100, lr=0.1, schedule="multistep", milestones=milestones, factor=factor)
    theirs = by_torch(protocol, torch.optim.lr_scheduler.MultiStepLR, milestones=list(milestones), gamma=factor)
    assert rates(protocol) == pytest.approx(theirs)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "multistep"}, r"protocol\.milestones must name a round for schedule=multistep, got \[\]"),
        ({"milestones": (3,)}, r"protocol\.milestones is for protocol\.schedule=multistep alone, got \[3\]"),
        ({"schedule": "cosine", "milestones": (3,)}, "for protocol.schedule=multistep alone"),
        ({"schedule": "multistep", "milestones": (0, 3)}, r"must be rising rounds from 1 on, got \[0, 3\]"),
        ({"schedule": "multistep", "milestones": (3, 3)}, r"must be rising rounds from 1 on, got \[3, 3\]"),
        ({"schedule": "multistep", "milestones": (3,), "factor": 0.0}, r"protocol\.factor must be positive, got 0"),
    ],
)
def test_schedules_that_make_no_sense_are_named(settings, message):
    with pytest.raises(UserError, match=message):
        Protocol(**settings)


def test_milestones_come_from_the_command_line():
    protocol = made(protocol__schedule="multistep", protocol__milestones=[2, 4]).protocol
    assert protocol.milestones == (2, 4)


# presets ------------------------------------------------------------------------------------------

FIELDS = {
    "rounds": "rounds",
    "local_epochs": "local_epochs",
    "local_learning_rate": "lr",
    "local_momentum": "momentum",
    "local_batch_size": "batch_size",
    "weight_decay": "weight_decay",
}
FEDDECORR = ("all label-skew experiments", "label-skew experiments")
PRESETS = {  # the scopes of the papers' facts that each preset follows, those that replace others last
    "feddecorr_cifar10": ("feddecorr", (*FEDDECORR, "dataset=cifar10")),
    "feddecorr_cifar100": ("feddecorr", (*FEDDECORR, "dataset=cifar100")),
    "feddecorr_tiny_imagenet": ("feddecorr", (*FEDDECORR, "dataset=tinyimagenet")),
    "feddecorr_tiny_imagenet_sampled": (
        "feddecorr",
        (*FEDDECORR, "dataset=tinyimagenet", "client-count ablation;clients=50|100"),
    ),
    "feddecorr_domain": ("feddecorr_tpami", ("domain heterogeneity",)),
    "spherefed_cifar100": ("spherefed", ("default",)),
    "spherefed_tiny_imagenet": ("spherefed", ("default",)),
    "spherefed_cifar100_1epoch": ("spherefed", ("default", "table 5;local_epochs=1")),
    "spherefed_cifar100_sampled": ("spherefed", ("default", "table 6")),
    "spherefed_cifar100_multistep": ("spherefed", ("default", "table 7;lr_schedule=multistep")),
    "spherefed_cifar100_50rounds": ("spherefed", ("default",)),
}


def facts(paper, scopes):
    """Return the stated values by name; what a later scope says replaces what an earlier one says."""
    return {
        row["name"]: row["value"]
        for scope in scopes
        for row in FACTS
        if row["paper"].startswith(paper) and row["scope"] == scope
    }


def test_every_preset_of_a_paper_is_compared():
    ours = {"default", "digits", "cifar10_small"}
    assert set(compose.options("protocol")) - ours == set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_what_the_papers_state(name):
    stated = facts(*PRESETS[name])
    protocol = made(protocol=name).protocol
    compared = {field: float(stated[fact]) for fact, field in FIELDS.items() if fact in stated}
    if name == "spherefed_cifar100_50rounds":
        [setup] = [row["value"] for row in FACTS if row["scope"] == "figure 2"]
        assert "50 rounds" in setup
        compared["rounds"] = 50
    if name == "spherefed_cifar100_1epoch":
        compared["local_epochs"] = 1
    assert len(compared) >= 5
    assert {field: getattr(protocol, field) for field in compared} == compared
    assert protocol.last_batch == "keep"
    assert protocol.precision == "float32"


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("feddecorr")])
def test_feddecorrs_rates_are_constant_and_autoaugment_is_where_it_is_stated(name):
    protocol, stated = made(protocol=name).protocol, facts(*PRESETS[name])
    assert protocol.schedule == "constant"
    assert ("autoaugment" in protocol.augment) == (stated.get("augmentation") == "autoaugment")
    assert protocol.augment == {
        "feddecorr_cifar10": "crop_flip",
        "feddecorr_cifar100": "crop_flip_autoaugment",
        "feddecorr_domain": "flip_rotate",
    }.get(name, "autoaugment")


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("spherefed")])
def test_spherefeds_rates_fall_by_rounds(name):
    protocol, stated = made(protocol=name).protocol, facts(*PRESETS[name])
    assert "decayed every round" in stated["lr_schedule"]
    if "multistep" not in name:
        assert protocol.schedule == "cosine"
        return
    every = int(stated["decay_every"].split()[0])
    assert (protocol.schedule, protocol.milestones) == ("multistep", (every, 2 * every))
    assert protocol.factor == float(stated["decay_factor"])


@pytest.mark.parametrize("name", PRESETS)
def test_descriptions_name_paper_and_section_or_table(name):
    description = presets.preset(name).description
    assert ("FedDecorr" in description) if name.startswith("feddecorr") else ("SphereFed (ECCV 2022)" in description)
    assert any(word in description for word in ("Sec. ", "App. ", "Fig. "))


# settings tuned for methods: SphereFed, Table 16 --------------------------------------------------

ADDONS = {"none": [], "ccvr": ["ccvr"], "babu": ["babu"], "spherefed": ["spherefed"]}
SETTINGS = {
    "cifar100_iid": {"protocol": "spherefed_cifar100", "partition": "iid"},
    "cifar100_alpha0.5": {"protocol": "spherefed_cifar100", "partition": "dirichlet", "partition.alpha": 0.5},
    "cifar100_alpha0.1": {"protocol": "spherefed_cifar100", "partition": "dirichlet", "partition.alpha": 0.1},
    "tinyimagenet": {"protocol": "spherefed_tiny_imagenet", "partition": "dirichlet", "partition.alpha": 0.5},
}
TABLE_16 = [
    (dict(part.split("=", 1) for part in row["scope"].split(";")), row["name"], row["value"])
    for row in FACTS
    if "setting=" in row["scope"]
]


def printed(base, setting, addon):
    """Return the table's numbers for a method: those of its base, replaced by those of its add-on."""
    found = {}
    for wanted in ("none", addon):
        for scope, name, value in TABLE_16:
            if (scope["base"], scope["setting"], scope["addon"]) == (base, setting, wanted):
                found[name] = value
    return found


def in_cell(cell, name):
    """Return what a cell has of a number of the table."""
    if name in FIELDS:
        return getattr(cell.protocol, FIELDS[name])
    fields = {"mu": "mu", "server_learning_rate": "lr", "server_momentum": "momentum"}
    if name in fields:
        return getattr(cell.algorithm, fields[name])
    [addon] = cell.addons
    return getattr(addon, {"virtual_features_per_class": "per_class", "fine_tuning_learning_rate": "lr"}[name])


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("base", ["fedavg", "fedprox", "fednova", "fedopt"])
@pytest.mark.parametrize("addon", ADDONS)
def test_a_method_has_the_numbers_of_table_16(setting, base, addon):
    stated = printed(base, setting, addon)
    assert stated.pop("local_optimizer") == "sgd"
    assert stated.pop("server_optimizer", "sgd") == "sgd"
    [planned] = plan([{**SETTINGS[setting], "algorithm": base, "addons": ADDONS[addon]}])
    expected = {name: float(value) for name, value in stated.items()}
    assert len(expected) >= 6
    assert {name: in_cell(planned.cell, name) for name in expected} == expected


def test_what_is_asked_for_wins_over_what_is_tuned():
    tuned = {"protocol": "spherefed_cifar100", "algorithm": "fedprox", "addons": ["spherefed"]}
    [planned] = plan([{**tuned, "protocol.lr": 0.7}])
    assert (planned.cell.protocol.lr, planned.cell.algorithm.mu) == (0.7, 0.0001)


def test_tuned_settings_are_part_of_the_overrides_that_hydra_gets():
    [planned] = plan([{"protocol": "spherefed_cifar100", "algorithm": "fedprox", "addons": ["spherefed"]}])
    assert planned.overrides["protocol.lr"] == 0.5
    by_hydra = compose.plain_config(compose.by_hydra(compose.override_words(planned.overrides)))
    assert by_hydra == planned.config
    assert compose.make_cell(by_hydra).key == planned.cell.key


def test_further_add_ons_leave_the_tuned_settings():
    assert made(protocol="spherefed_cifar100", addons=["spherefed", "feddecorr"]).protocol.lr == 0.5


@pytest.mark.parametrize(("dataset", "share"), [("office_caltech10", 0.5), ("domainnet", 0.05)])
def test_domains_are_cut_to_one_size_as_fedbns_code_does_unless_asked_otherwise(dataset, share):
    asked = {"protocol": "feddecorr_domain", "dataset": dataset, "partition": "domain"}
    [cut], [whole] = plan([asked]), plan([{**asked, "partition.subsample": 0.0}])
    assert (cut.cell.partition.subsample, whole.cell.partition.subsample) == (share, 0)


def test_protocols_without_tuned_settings_add_none():
    assert compose.tuned({"protocol": "feddecorr_cifar10", "algorithm": "fedprox"}) == {}
    assert compose.tuned({}) == {}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the protocols of an empty working folder."""
    made = tmp_path / "leaderboards" / "protocols"
    made.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return made


def write(folder, name, **values):
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(values))


def test_protocols_that_come_and_go_are_seen_at_once(folder):
    assert "mine" not in compose.options("protocol")
    write(folder, "mine", rounds=3)
    assert made(protocol="mine").protocol.rounds == 3
    (folder / "mine.yaml").unlink()
    assert "mine" not in compose.options("protocol")


def test_the_last_rule_that_fits_wins(folder):
    rules = [
        {"when": {"algorithm": "fedavg"}, "set": {"protocol.lr": 0.2, "protocol.rounds": 3}},
        {"when": {"algorithm": "fedavg", "clients": 10}, "set": {"protocol.lr": 0.3}},
        {"when": {"algorithm": "fedavg", "clients": 11}, "set": {"protocol.lr": 0.4}},
        {"when": {"algorithm.mu": 0.001}, "set": {"protocol.lr": 0.5}},
    ]
    write(folder, "mine", lr=0.1, tuned=rules)
    assert compose.tuned({"protocol": "mine"}) == {"protocol.lr": 0.3, "protocol.rounds": 3}
    assert compose.tuned({"protocol": "mine", "algorithm": "fedprox"}) == {"protocol.lr": 0.5}
    assert compose.tuned({"protocol": "mine", "algorithm": "fedopt"}) == {}


def test_a_protocol_may_begin_as_another_one(folder):
    write(folder, "root", rounds=3, lr=0.5, description="root", tuned=[{"when": {}, "set": {"clients": 3}}])
    write(folder, "child", extends="root", rounds=4, tuned=[{"when": {}, "set": {"seed": 5}}])
    write(folder, "grandchild", extends="child", tuned=[{"when": {}, "set": {"seed": 6}}])
    for name, seed in (("child", 5), ("grandchild", 6)):
        cell = made(protocol=name)
        assert (cell.protocol.rounds, cell.protocol.lr, cell.clients, cell.seed) == (4, 0.5, 3, seed)
        assert presets.preset(name).description == ""


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"extends": "rooot"}, r"mine\.yaml: extends: there is no protocol 'rooot'; did you mean 'root'"),
        ({"extends": ["root"]}, r"mine\.yaml: extends: there is no protocol '\['root'\]'"),
        ({"extends": "mine"}, r"mine\.yaml: it extends itself"),
        ({"extends": "child"}, r"child\.yaml: it extends itself"),
        ({"tuned": 3}, r"mine\.yaml: tuned must be a list of mappings"),
        ({"tuned": [{"wen": {}}]}, r"unknown field '.*mine\.yaml: tuned\[0\]\.wen'; did you mean 'when'"),
        ({"tuned": [{"when": {}, "set": {"protocol.lrr": 1}}]}, "unknown setting 'protocol.lrr'; did you mean"),
        (
            {"tuned": [{"when": {"algoritm": "x"}}]},
            "depends on 'algoritm', which is not a setting; did you mean 'algorithm'",
        ),
        (
            {"tuned": [{"when": {"algorithm": ["fedavg", "fedprx"]}}]},
            "depends on algorithm=.*: unknown algorithm 'fedprx'; did you mean 'fedprox'",
        ),
        (
            {"tuned": [{"when": {"addons": ["fedecorr"]}}]},
            "depends on addons=.*: unknown addon 'fedecorr'; did you mean",
        ),
        ({"rounds": 0}, r"protocol\.rounds must be at least 1"),
    ],
)
def test_mistakes_in_a_protocols_file_are_named(folder, values, message):
    write(folder, "root", rounds=3)
    write(folder, "child", extends="mine")
    write(folder, "mine", **values)
    with pytest.raises(UserError, match=message) as error:
        made(protocol="mine")
    assert "\n" not in str(error.value)
