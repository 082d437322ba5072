"""People read titles and words, not code names; the same setting has the same words everywhere."""

import dataclasses

import pytest

from fedspan.benchmark import names
from fedspan.benchmark.registry import KINDS, all_plugins, plugins
from tests.toys import toy

ALL = list(all_plugins())


def ids(plugin):
    return f"{plugin.kind}:{plugin.name}"


@pytest.mark.parametrize("plugin", ALL, ids=ids)
def test_every_plugin_has_a_title_and_a_summary_of_its_own(plugin):
    own = vars(plugin)
    assert own.get("title", "").strip(), "a title that it does not inherit"
    assert own.get("summary", "").endswith("."), "one sentence that it does not inherit"
    assert len(own["summary"]) <= 120
    assert ". " not in own["summary"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_plugins_of_a_kind_have_the_same_title(kind):
    titles = [plugin.title for plugin in plugins(kind).values()]
    assert len(set(titles)) == len(titles) > 0


@pytest.mark.parametrize("plugin", ALL, ids=ids)
def test_words_are_about_settings_that_the_plugin_has(plugin):
    fields = {field.name for field in dataclasses.fields(plugin)}
    assert {*vars(plugin).get("wording", {}), *plugin.identifying} <= fields


@pytest.mark.parametrize("plugin", ALL, ids=ids)
def test_a_plugin_at_its_defaults_is_told_by_its_title_and_what_identifies_it(plugin):
    said = names.name_of(plugin())
    identified = bool(plugin.identifying or getattr(plugin, "skew_field", ""))
    assert said.startswith(f"{plugin.title} (") if identified else said == plugin.title


@pytest.mark.parametrize("plugin", ALL, ids=ids)
def test_an_instance_and_its_part_of_a_record_have_one_name(plugin):
    values = {field.name: getattr(plugin(), field.name) for field in dataclasses.fields(plugin)}
    assert names.name_of(plugin()) == names.name_from(plugin.kind, {"name": plugin.name, "version": 9, **values})


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("fedavg", "FedAvg"),
        ("fedavg + feddecorr", "FedAvg + FedDecorr (released form)"),
        ("fedavg + feddecorr(form=paper, beta=0.2)", "FedAvg + FedDecorr (paper form, beta 0.2)"),
        ("fedavg + ffc(every=10)", "FedAvg + FFC (calibrated every 10 rounds)"),
        ("fedavg + ffc(every=0)", "FedAvg + FFC (calibrated at the end)"),
        ("moon(projection=[64, 256]) + spherefed(ffc=false)", "MOON (projection 64-256) + SphereFed (not calibrated)"),
        ("fedavg + oracle_head(criteria=[ce, mse])", "FedAvg + Oracle head (criteria ce-mse)"),
        ("fedavg + feddecorr, lr=0.1, tuned", "FedAvg + FedDecorr (released form), learning rate 0.1, tuned"),
        ("fedadam(tau=1e-05)", "FedAdam (tau 1e-05)"),
        ("nobody(k=3)", "nobody (k 3)"),
    ],
)
def test_the_label_of_a_method_in_words(label, said):
    assert names.of_method_label(label) == said


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("dirichlet(alpha=0.05)", "alpha 0.05"),
        ("dirichlet", "alpha 0.5"),
        ("dirichlet(alpha=0.1, balanced=false)", "alpha 0.1, plain draw"),
        ("pathological(classes_per_client=3)", "Pathological (3 classes per client)"),
        ("iid", "IID"),
        ("quantity(alpha=0.1)", "quantity alpha 0.1"),
    ],
)
def test_a_partition_is_told_by_its_skew_where_it_has_one(label, said):
    assert names.of_partition_label(label) == said


def test_a_label_tells_what_varies_even_at_its_default():
    assert names.of_label("addon", "decov(beta=0.1)") == "DeCov (beta 0.1)"


WHAT = {
    "dataset": {"name": "cifar10", "version": 1, "limit": 5000, "content": "78086fc2"},
    "partition": {"name": "dirichlet", "version": 2, "alpha": 0.05},
    "clients": 10,
    "participation": 1.0,
    "algorithm": {"name": "fedprox", "version": 1, "mu": 0.01},
    "addons": [{"name": "feddecorr", "version": 1}],
}


def test_the_task_and_the_method_of_a_cell():
    assert names.task_name(WHAT) == "CIFAR-10, 5,000 images, 10 clients, alpha 0.05"
    assert names.method_name(WHAT) == "FedProx (mu 0.01) + FedDecorr (released form)"


def test_a_task_tells_how_many_clients_take_part():
    assert "1 client (50% a round)" in names.task_name(WHAT | {"clients": 1, "participation": 0.5})
    few = [names.task_name(WHAT | {"clients": 3500, "participation": 10 / 3500, "unseen": s}) for s in (0.015, 0.02)]
    assert ["(0.286% a round), 1.5% of them unseen" in few[0], "2% of them unseen" in few[1]] == [True, True]


def test_a_plugin_without_words_is_told_by_its_name_and_the_first_line_of_its_docstring():
    @toy("algorithm", "plain")
    class Plain(plugins("algorithm")["fedavg"]):
        """Somebody 2024: a first line.

        More.
        """

        title = summary = ""
        rate: float = 1.0
        fast: bool = False

    assert names.summary_of(Plain) == "Somebody 2024: a first line."
    assert names.name_of(Plain(rate=2.0, fast=True)) == "plain (rate 2, fast)"
