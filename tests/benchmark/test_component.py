import pytest
import torch

from fedspan.benchmark.component import Component, Setting
from fedspan.benchmark.errors import HookError, Incompatible
from fedspan.benchmark.method import compose
from fedspan.methods.addons.feddecorr import FedDecorr
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.methods.algorithms.fedprox import FedProx
from tests.helpers import toy_cell, trained, weights
from tests.toys import Sharpness, Sphere, toy


def replacing(name, hook):
    return toy("addon", name)(type(name, (Component,), {hook: lambda self, *args: None}))()


@pytest.mark.parametrize("hook", ["loss", "phases", "calibrate"])
def test_two_components_that_replace_the_same_thing_are_both_named(hook):
    with pytest.raises(Incompatible, match=f"'mine' and 'theirs' both replace '{hook}'"):
        compose(FedAvg(), [replacing("mine", hook), replacing("theirs", hook)])


@pytest.mark.parametrize("hook", ["loss", "phases", "calibrate"])
def test_one_component_may_replace_it(hook):
    assert compose(FedAvg(), [replacing("mine", hook)]).using(hook)[0].name == "mine"


def test_a_component_cannot_stand_beside_itself():
    with pytest.raises(Incompatible, match="'feddecorr' appears twice in fedavg"):
        compose(FedAvg(), [FedDecorr(), FedDecorr(beta=0.2)])


@pytest.mark.parametrize("order", [0, 1])
def test_components_that_exclude_each_other_are_both_named(order):
    @toy("addon", "proud")
    class Proud(Component):
        excludes = ("feddecorr",)

    with pytest.raises(Incompatible, match="'proud' does not work beside 'feddecorr'"):
        compose(FedAvg(), [Proud(), FedDecorr()][:: 1 - 2 * order])


def test_an_exclusion_can_say_why():
    @toy("addon", "proud")
    class Proud(Component):
        excludes = {"feddecorr": "both whiten features"}

    with pytest.raises(Incompatible, match="'proud' does not work beside 'feddecorr': both whiten features"):
        compose(FedAvg(), [Proud(), FedDecorr()])


def test_a_component_excludes_what_exists():
    @toy("addon", "proud")
    class Proud(Component):
        excludes = ("feddecor",)

    with pytest.raises(HookError, match=r"addon 'proud' excludes 'feddecor', which is not .* did you mean 'feddecorr'"):
        compose(FedAvg(), [Proud()])


def test_an_impossible_stack_names_no_cell_of_its_own_but_has_a_key():
    cell = toy_cell(FedAvg(), FedDecorr(), FedDecorr(beta=0.2))
    assert cell.key
    with pytest.raises(Incompatible):
        cell.method()


@toy("addon", "toy_plus")
class Plus(Component):
    def server(self, delta, agg):
        return {path: leaf + 1 for path, leaf in delta.items()}, {}

    def grads(self, grads, step):
        return {path: leaf + 1 for path, leaf in grads.items()}

    def client_end(self, delta, local):
        return {path: leaf + 1 for path, leaf in delta.items()}, {}, {}


@toy("addon", "toy_double")
class Double(Component):
    def server(self, delta, agg):
        return {path: leaf * 2 for path, leaf in delta.items()}, {}

    def grads(self, grads, step):
        return {path: leaf * 2 for path, leaf in grads.items()}

    def client_end(self, delta, local):
        return {path: leaf * 2 for path, leaf in delta.items()}, {}, {}


@pytest.mark.parametrize(("addons", "result"), [((Plus(), Double()), 8.0), ((Double(), Plus()), 7.0)])
def test_chained_hooks_act_base_first_then_as_written(addons, result):
    method, three = compose(FedAvg(), addons), {"w": torch.tensor(3.0)}
    state = {name: {} for name in ("fedavg", "toy_plus", "toy_double")}

    class View:
        client = server = {}

    assert method.server(three, lambda name: View)[0]["w"] == result
    assert method.client_end(three, lambda name: View)[0]["w"] == result
    assert method.grads(three, View, state, state)["w"] == result


def test_penalties_add_up_each_with_its_own_state():
    def owing(name, amount):
        def penalty(self, step):
            return amount * step.server["one"] + step.client["ten"]

        return toy("addon", name)(type(name, (Component,), {"penalty": penalty}))()

    class Base(FedAvg):
        def loss(self, step):
            return torch.tensor(100.0)

    class Empty:
        pass

    method = compose(Base(), [owing("a", 2), owing("b", 3)])
    server = {"fedavg": {}, "a": {"one": torch.tensor(1.0)}, "b": {"one": torch.tensor(1.0)}}
    client = {"fedavg": {}, "a": {"ten": torch.tensor(10.0)}, "b": {"ten": torch.tensor(20.0)}}
    assert method.objective(Empty(), server, client) == 100 + 2 + 10 + 3 + 20


def test_a_weight_moves_and_travels_only_if_all_agree():
    def refusing(name, path):
        hooks = {"trainable": lambda self, p: p != path, "shared": lambda self, p, m: p != path}
        return toy("addon", name)(type(name, (Component,), hooks))()

    method = compose(FedAvg(), [refusing("a", "x"), refusing("b", "y")])
    assert [method.trainable(path) for path in "xyz"] == [False, False, True]
    assert [method.shared(path, None) for path in "xyz"] == [False, False, True]


def test_the_order_of_add_ons_may_matter_and_is_kept():
    ab, ba = (trained(toy_cell(FedAvg(), *addons)) for addons in ((Plus(), Double()), (Double(), Plus())))
    assert weights(ab) != weights(ba)


def test_every_component_checks_the_setting():
    seen = []

    class Picky(FedProx):
        def check(self, setting):
            seen.append(setting)
            raise Incompatible("not here")

    with pytest.raises(Incompatible, match="not here"):
        trained(toy_cell(Picky(), Sharpness()))
    assert isinstance(seen[0], Setting)
    assert (seen[0].classes, seen[0].shape, seen[0].clients) == (3, (2, 6, 6), 6)


def test_only_what_is_overridden_counts_as_used():
    method = compose(FedAvg(), [Sphere()])
    assert [c.name for c in method.using("loss")] == ["toy_sphere"]
    assert method.using("grads") == ()
    assert not method.edits_gradients
    assert method.calibrator == Sphere()
    assert compose(FedAvg()).calibrator is None
