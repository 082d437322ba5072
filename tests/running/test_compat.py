"""Which add-on works on which algorithm."""

import pytest

from fedspan.benchmark.cli.main import main
from fedspan.benchmark.registry import plugins
from fedspan.benchmark.running.compat import ALONE, Compatibility
from fedspan.benchmark.spec.compose import resolve


@pytest.fixture(scope="module")
def found():
    return Compatibility.of(resolve({}))


def test_every_pair_is_there(found):
    assert found.algorithms == tuple(plugins("algorithm"))
    assert found.addons == (ALONE, *plugins("addon"))


def test_fedavg_takes_every_add_on(found):
    assert {found.mark("fedavg", addon) for addon in found.addons} == {"+"}


def test_a_pair_that_cannot_work_has_its_reason(found):
    number = int(found.mark("fedrep", "babu"))
    assert found.reasons[number - 1] == "'babu' freezes all that 'fedrep' trains in a phase"


def test_the_answer_is_that_of_the_cell_itself():
    """Without normalisation FedBN keeps nothing at its clients; with it, there is no one model to calibrate."""
    assert Compatibility.of(resolve({})).mark("fedbn", "ccvr") == "+"
    with_norm = Compatibility.of(resolve({"model": "resnet20"}))
    assert with_norm.why["fedbn", "ccvr"] == "'ccvr' calibrates one global model, 'fedbn' leaves weights with clients"


def test_settings_and_further_add_ons_count():
    taken = Compatibility.of(resolve({"addons": ["spherefed"]}))
    assert taken.why["fedavg", "ffc"] == "'spherefed' and 'ffc' both replace 'calibrate'; keep one of them"
    assert "spherefed" not in taken.addons
    off = Compatibility.of(resolve({"addons": ["spherefed"], "addon.spherefed.ffc": False}))
    assert off.mark("fedavg", "ffc") == "+"


def test_the_command_prints_the_matrix_and_the_reasons(capsys):
    assert main(["list", "methods", "--compat"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in plugins("algorithm"))
    assert "1: '" in printed


@pytest.mark.parametrize("words", [["--compat"], ["methods", "--compat", "addons"]])
def test_half_a_command_is_answered_with_the_whole(words, capsys):
    assert main(["list", *words]) == 2
    assert "write: fedspan list methods --compat" in capsys.readouterr().err
