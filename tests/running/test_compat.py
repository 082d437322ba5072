"""Which add-on works on which algorithm."""

import pytest

from fedspan.benchmark.cli.main import main
from fedspan.benchmark.errors import Incompatible
from fedspan.benchmark.registry import plugins
from fedspan.benchmark.running import compat
from fedspan.benchmark.running.compat import ALONE, Compatibility
from fedspan.benchmark.spec.compose import resolve
from tests.helpers import toy_cell, trained


@pytest.fixture(scope="module")
def found():
    """The matrix of our own methods, whatever plugins other tests of this process have registered."""

    def ours(kind):
        return {name: cls for name, cls in plugins(kind).items() if cls.__module__.startswith("fedspan.")}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compat, "plugins", ours)
        return Compatibility.of(resolve({}))


@pytest.fixture
def one_pair(monkeypatch):
    """Return a function that tells of one pair on a task why it cannot work, or None."""

    def why(algorithm, addon, **overrides):
        kinds = {"algorithm": algorithm, "addon": addon}
        monkeypatch.setattr(compat, "plugins", lambda kind: {kinds[kind]: plugins(kind)[kinds[kind]]})
        return Compatibility.of(resolve(overrides)).why.get((algorithm, addon))

    return why


def test_every_pair_is_there(found):
    assert found.algorithms == tuple(plugins("algorithm"))
    assert found.addons == (ALONE, *plugins("addon"))


def test_fedavg_takes_every_add_on(found):
    assert {found.mark("fedavg", addon) for addon in found.addons} == {"+"}


def test_a_pair_that_cannot_work_has_its_reason(found):
    number = int(found.mark("fedrep", "babu"))
    assert found.reasons[number - 1] == "'babu' freezes all that 'fedrep' trains in a phase"


def test_a_method_may_refuse_when_its_trees_are_made(found):
    number = int(found.mark("fedala", "babu"))
    assert "of which none is trained here" in found.reasons[number - 1]


def test_the_answer_is_that_of_the_cell_itself(one_pair, found):
    """Without normalisation FedBN keeps nothing at its clients; with it, there is no one model to calibrate."""
    assert found.mark("fedbn", "ccvr") == "+"
    with_norm = one_pair("fedbn", "ccvr", model="resnet20")
    assert with_norm == "'ccvr' calibrates one global model, 'fedbn' leaves weights with clients"


def test_settings_and_further_add_ons_count(one_pair):
    taken = {"addons": ["spherefed"]}
    both = "'spherefed' and 'ffc' both replace 'calibrate'; keep one of them"
    assert one_pair("fedavg", "ffc", **taken) == both
    assert one_pair("fedavg", "ffc", **taken, **{"addon.spherefed.ffc": False}) is None


def test_an_add_on_that_a_cell_has_already_is_not_tried_again(monkeypatch):
    monkeypatch.setattr(compat, "plugins", lambda kind: dict(list(plugins(kind).items())[:1]))
    [first] = compat.plugins("addon")
    assert Compatibility.of(resolve({"addons": [first]})).addons == (ALONE,)


def test_the_command_prints_the_matrix_and_the_reasons(capsys, monkeypatch, found):
    monkeypatch.setattr(Compatibility, "of", lambda config: found)
    assert main(["list", "methods", "--compat"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in found.algorithms)
    assert "1: '" in printed
    assert "…" not in printed, "80 columns are too few"


@pytest.mark.parametrize("words", [["--compat"], ["methods", "--compat", "addons"]])
def test_half_a_command_is_answered_with_the_whole(words, capsys):
    assert main(["list", *words]) == 2
    assert "write: fedspan list methods --compat" in capsys.readouterr().err


@pytest.mark.parametrize("algorithm", plugins("algorithm"))
def test_what_is_said_of_a_pair_is_what_its_cell_says(algorithm):
    for addon in plugins("addon"):
        stack = plugins("algorithm")[algorithm](), plugins("addon")[addon]()
        cell = toy_cell(*stack, protocol={"rounds": 1, "local_epochs": 1})
        try:
            trained(cell)
            said = None
        except Incompatible as reason:
            said = str(reason)
        assert compat.why_not(cell, cell.dataset.load(None)) == said
