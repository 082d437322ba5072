"""A hook that returns what it must not, or raises, is named with its component, file and line."""

import inspect
import math
import random
from collections import Counter

import numpy as np
import pytest
import torch

from fedspan.benchmark import method
from fedspan.benchmark.component import HOOKS, Component, Wire
from fedspan.benchmark.contract import RULES, blame
from fedspan.benchmark.errors import HookError
from fedspan.benchmark.running.compat import why_not
from fedspan.benchmark.task import Dataset, Model
from fedspan.benchmark.training.costs import costs
from fedspan.benchmark.training.scoring import score_stages
from fedspan.methods.addons.feddecorr import FedDecorr
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.methods.algorithms.fedprox import FedProx
from tests.helpers import toy_cell, trained
from tests.toys import toy

ONE_ROUND = {"rounds": 1, "local_epochs": 1}


def addon_with(**hooks):
    """Return an add-on with these hooks."""
    return toy("addon", "odd")(type("Odd", (Component,), hooks))()


def complaint(tmp_path, protocol=None, **hooks):
    """Return what is said of an add-on with these hooks when it trains, is scored and costed."""
    cell = toy_cell(FedAvg(), addon_with(**hooks), protocol={**ONE_ROUND, **(protocol or {})})
    try:
        score_stages(trained(cell))
        costs(cell, tmp_path)
    except HookError as error:
        return str(error)
    pytest.fail("nothing is said")


def one(value):
    """Return a hook that returns `value` whatever it gets."""
    return lambda self, *inputs: value


SCALAR, TREE = torch.zeros(()), {"a": torch.zeros(1)}
WRONG = {
    "net": (one(None), "must return a Net: it returned None; is a return missing?"),
    "init": (one({}), "must return (server tree, client tree): it returned a dict of 0"),
    "init, a tree of numbers": (one(({}, {"m": 0})), "the client tree holds 0 under 'm', which is not a tensor"),
    "trainable": (one(None), "must return True or False: it returned None"),
    "shared": (one("yes"), "must return True or False: it returned 'yes'"),
    "phases": (one([]), "must return a list of (epochs, predicate): it returned a list of 0"),
    "phases, without predicate": (one([(1, True)]), "one phase is (1, True)"),
    "loss": (one(torch.zeros(3)), "must return a scalar tensor: it returned a tensor float32 [3]"),
    "penalty": (one(0.0), "must return a scalar tensor: it returned 0.0"),
    "grads": (one(None), "must return a tree with the gradient of every weight that moves: it returned None"),
    "grads, too few": (lambda self, grads, step: {}, "the tree lacks 'body.1.bias'"),
    "shift": (one(TREE), "must return a tree over weights: the tree has 'a', which is not among body.1.bias,"),
    "broadcast": (one([]), "must return a tree: it returned a list of 0"),
    "message": (one([]), "must return a tree: it returned a list of 0"),
    "client_end": (one(({}, {})), "must return (delta, upload, client tree): it returned a tuple of 2"),
    "client_end, delta": (one(({}, {}, {})), "delta lacks 'body.1.bias'"),
    "client_end, upload": (lambda self, d, local: (d, {"n": "1"}, {}), "the upload holds '1' under 'n'"),
    "client_end, client tree": (lambda self, d, local: (d, {}, TREE), "has 'a', which is not among its names, which"),
    "carry": (one(TREE), "must return the client tree: the client tree (its names come from init) has 'a'"),
    "weights": (one([1.0]), "must return a tensor of one weight for each participant: it returned a list of 1"),
    "weights, too few": (one(torch.ones(2)), "one weight for each participant: it returned a tensor float32 [2]"),
    "weights, negative": (lambda self, counts, samples: counts.sum(1) - 5, "none negative and not all 0: one is -"),
    "weights, no number": (lambda self, counts, samples: counts[:, 0] / 0, "none negative and not all 0: one is "),
    "weights, of nobody": (lambda self, counts, samples: 0 * counts[:, 0], "not all 0: all of them are 0"),
    "client_start": (lambda self, params, local: params, "must return (weights, client tree): it returned a dict of 4"),
    "client_start, weights": (one(({}, {})), "the tree lacks 'body.1.bias'"),
    "client_start, client tree": (lambda self, params, local: (params, TREE), "has 'a', which is not among its names"),
    "wire": (one(8), "must return a Wire whose numbers and bits are not negative: it returned 8"),
    "wire, less than nothing": (one(Wire(3, -1.0)), "it returned Wire(numbers=3, bits=-1.0, extra=0.0)"),
    "aggregate": (
        lambda self, updates, agg: updates,
        "must return a tree with the delta of every weight: delta holds {",
    ),
    "own": (one(TREE), "must return a tree over weights and statistics: the tree has 'a'"),
    "server": (lambda self, delta, agg: delta, "must return (delta, server tree): it returned a dict of 4"),
    "server, delta": (
        lambda self, delta, agg: ({path: leaf[:1] for path, leaf in delta.items()}, {}),
        "delta has the shape [1] under 'body.1.bias', not [5]",
    ),
    "server, server tree": (lambda self, delta, agg: (delta, TREE), "the server tree (its names come from init) has"),
    "privacy": (one(0.5), "must return (epsilon, delta), finite, delta between 0 and 1: it returned 0.5"),
    "privacy, no bound": (one((math.inf, 1e-5)), "delta between 0 and 1: it returned (inf, 1e-05)"),
    "privacy, no delta": (one((0.5, 1.0)), "delta between 0 and 1: it returned (0.5, 1.0)"),
    "calibration_cost": (one(1.5), "must return (numbers sent, FLOPs), whole numbers, or None: it returned 1.5"),
    "stats": (one(None), "must return a tree: it returned None"),
    "calibrate": (one({}), "must return a tree with every weight: the tree lacks 'body.1.bias'"),
    "personalise": (one(TREE), "must return a tree over weights: the tree has 'a'"),
}
NEEDED = {  # hooks beside which others are asked
    "calibrate": {"stats": one(TREE)},
    "stats": {"calibrate": lambda self, params, *inputs: dict(params)},
    "calibration_cost": {"stats": one(TREE), "calibrate": lambda self, params, *inputs: dict(params)},
}


@pytest.mark.parametrize("case", WRONG)
def test_a_returned_value_is_checked(tmp_path, case):
    hook, (function, message) = case.split(",")[0], WRONG[case]
    said = complaint(tmp_path, **{hook: function, **NEEDED.get(hook, {})})
    assert said.startswith(f"addon 'odd', {hook} ({__file__}, line ")
    assert message in said


def test_every_hook_that_returns_something_has_a_rule():
    assert set(RULES) == {
        hook for hook in HOOKS if inspect.signature(getattr(Component, hook)).return_annotation != "None"
    }
    assert {case.split(",")[0] for case in WRONG} == set(RULES)


def test_what_a_hook_of_a_round_returns_is_checked_in_every_round():
    class Late(FedAvg):
        def server(self, delta, agg):
            return (delta, {}) if agg.round == 0 else delta

    with pytest.raises(HookError, match=r"server .* must return \(delta, server tree\): it returned a dict of"):
        trained(toy_cell(Late(), protocol={"rounds": 2}))


def test_hooks_of_steps_are_checked_once(monkeypatch):
    """Later steps cost nothing extra."""
    checked = Counter()
    monkeypatch.setattr(method, "check_returned", lambda component, hook, *rest: checked.update([hook]))
    trained(toy_cell(FedProx(), protocol={"rounds": 2}))
    assert (checked["penalty"], checked["server"]) == (1, 2)


def in_place(hook, change):
    """Return an algorithm with a hook that changes an input and returns what its base class does."""

    def call(self, *inputs):
        change(*inputs)
        return getattr(FedAvg, hook)(self, *inputs)

    return type("Careless", (FedAvg,), {hook: call})()


def first(tree):
    return next(iter(tree.values()))


@pytest.mark.parametrize("executor", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("hook", "change"),
    [
        ("server", lambda delta, agg: first(agg.params).mul_(0.5)),
        ("client_end", lambda delta, local: first(local.start).add_(1)),
        ("client_end", lambda delta, local: first(delta).zero_()),
        ("grads", lambda grads, step: first(step.start).mul_(0.9)),
    ],
)
def test_a_hook_that_changes_an_input_in_place_is_refused(hook, change, executor):
    with pytest.raises(HookError, match=rf"algorithm 'fedavg', {hook} \(.*\) changes an input in place; return new"):
        trained(toy_cell(in_place(hook, change), protocol=ONE_ROUND), executor=executor)


@pytest.mark.parametrize("draw", [lambda: torch.rand(1), lambda: np.random.rand(), random.random])  # noqa: NPY002
def test_a_hook_that_draws_from_a_global_generator_is_refused(draw):
    careless = in_place("server", lambda *inputs: draw())
    with pytest.raises(HookError, match=r"server \(.*\) draws from a global random generator; draw from the `rng`"):
        trained(toy_cell(careless, protocol=ONE_ROUND))


@pytest.mark.parametrize("kind", [torch.float64, torch.int64, torch.float16])
def test_a_tree_of_another_type_is_refused(kind):
    """Sent, it would count other bytes; kept, it would change the type of the model."""

    class Wide(FedAvg):
        def server(self, delta, agg):
            return {path: leaf.to(kind) for path, leaf in delta.items()}, {}

    with pytest.raises(HookError, match=rf"server .* delta has {kind} under '.*', not torch\.float32"):
        trained(toy_cell(Wide(), protocol=ONE_ROUND | {"precision": "float32"}))


def raised(work):
    with pytest.raises(Exception) as found:  # noqa: PT011 - any
        work()
    return blame(found.value)


def line_of(function):
    return inspect.unwrap(function).__code__.co_firstlineno


class Divides(FedAvg):
    def server(self, delta, agg):
        return self._helper(agg), {}

    def _helper(self, agg):
        return agg.round / 0


def test_an_error_in_a_hook_names_the_line_that_raised_and_what_was_expected():
    said = raised(lambda: trained(toy_cell(Divides(), protocol=ONE_ROUND)))
    assert said == (
        f"algorithm 'fedavg', server ({__file__}, line {line_of(Divides._helper) + 1}): ZeroDivisionError: division by "
        "zero; expected: Return (delta, server tree); delta is the weighted mean update, the result is added to the "
        "weights"
    )


def test_an_assertion_about_settings_names_its_line_and_what_to_write_instead():
    class Strict(Component):
        """Nobody 2020."""

        k: float = 0.5

        def __post_init__(self):
            assert self.k < 0.6

    with pytest.raises(AssertionError) as found:
        toy("addon", "strict")(Strict)(k=0.7)
    found.value.args = ()  # pytest says more
    line = inspect.getsourcelines(Strict.__post_init__)[1] + 1
    assert blame(found.value) == (
        f"addon 'strict', __post_init__ ({__file__}, line {line}): AssertionError: assert self.k < 0.6; expected: "
        'require(condition, "addon.strict.FIELD", "must ...", value) of fedspan.benchmark.errors'
    )


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_a_loss_without_a_gradient_names_its_method_and_hook(executor):
    detached = addon_with(loss=lambda self, step: step.logits.detach().mean())
    cell = toy_cell(FedAvg(), detached, protocol=ONE_ROUND)
    with pytest.raises(HookError, match=r"addon 'odd', loss \(.*\) must return a loss with a gradient") as found:
        trained(cell, executor=executor)
    assert __file__ in str(found.value)


def test_an_error_below_a_hook_names_the_line_of_the_hook():
    class Shapes(FedAvg):
        def penalty(self, step):
            return (step.features @ step.features).sum()

    said = raised(lambda: trained(toy_cell(Shapes(), protocol=ONE_ROUND)))
    assert said.startswith(
        f"algorithm 'fedavg', penalty ({__file__}, line {line_of(Shapes.penalty) + 1}): RuntimeError:"
    )


@pytest.mark.parametrize("sends", [True, False])
def test_a_name_that_no_tree_has_is_explained_where_nothing_is_broadcast(sends):
    more = {"broadcast": lambda self, server: {}} if sends else {}
    forgetful = addon_with(
        init=lambda self, params, shared, buffers: (dict(shared), {}),
        penalty=lambda self, step: step.server["w"].sum(),
        **more,
    )
    said = raised(lambda: trained(toy_cell(FedAvg(), forgetful, protocol=ONE_ROUND)))
    assert "KeyError: 'w'" in said
    assert ("there is no `broadcast`" in said) == (not sends)


@pytest.mark.parametrize("branches", [True, False])
def test_a_branch_on_a_tensor_is_explained(tmp_path, branches):
    def penalty(self, step):
        total = (step.features**2).sum()
        return total if branches and total > 1 else total @ total

    said = raised(lambda: costs(toy_cell(FedAvg(), addon_with(penalty=penalty)), tmp_path))
    assert "RuntimeError" in said
    assert ("a hook must not branch on a tensor" in said) is branches


def test_a_name_that_init_lacks_has_nothing_to_do_with_broadcasts():
    def init(self, params, shared, buffers):
        return params["w"], {}

    said = raised(lambda: trained(toy_cell(FedAvg(), addon_with(init=init))))
    assert "KeyError: 'w'" in said
    assert "broadcast" not in said


def test_a_property_that_raises_is_named_without_a_word_of_broadcasts():
    def idle(self):
        return {}["nothing"]

    with pytest.raises(KeyError) as found:
        addon_with(idle=property(idle)).idle  # noqa: B018
    said = blame(found.value)
    assert "addon 'odd', idle" in said
    assert "broadcast" not in said


def test_what_is_kept_in_self_is_told_where_it_belongs():
    def keep(self, delta, agg):
        self.momentum = delta

    said = raised(lambda: trained(toy_cell(FedAvg(), addon_with(server=keep), protocol=ONE_ROUND)))
    assert "cannot assign to field 'momentum' (`self` holds settings only" in said


def test_a_hook_that_is_missing_is_named():
    half = addon_with(calibrate=lambda self, params, sums, rng: dict(params))
    said = raised(lambda: score_stages(trained(toy_cell(FedAvg(), half, protocol=ONE_ROUND))))
    assert said.startswith("addon 'odd', stats is missing; expected: Return float64 statistics")


def test_tasks_are_named_as_methods_are(tmp_path):
    @toy("model", "narrow")
    class Narrow(Model):
        def build(self, shape, classes):
            raise KeyError("width")

    @toy("dataset", "absent")
    class Absent(Dataset):
        pass

    cell = toy_cell(model=Narrow(), protocol=ONE_ROUND)
    line = line_of(Narrow.build) + 1
    assert raised(lambda: trained(cell)).startswith(
        f"model 'narrow', build ({__file__}, line {line}): KeyError: 'width'; "
    )
    assert raised(lambda: Absent().prepare(tmp_path)).startswith("dataset 'absent', load is missing; expected: Return ")


def test_an_error_of_the_engine_blames_nobody():
    def fail():
        raise RuntimeError("ours")

    assert raised(fail) is None


@pytest.mark.parametrize(
    "hook",
    [{"check": lambda self, setting: setting.nothing}, {"net": lambda self, net, draws: None}],
    ids=["raises", "returns"],
)
def test_a_broken_plugin_is_a_reason_against_its_cells(hook):
    cell = toy_cell(FedAvg(), addon_with(**hook))
    assert "addon 'odd'" in why_not(cell, cell.dataset.prepare(None))


def test_a_broken_engine_is_no_reason_against_a_cell(monkeypatch):
    cell = toy_cell(FedAvg(), FedDecorr())
    monkeypatch.setattr("fedspan.benchmark.training.costs.assemble", lambda *given: {}["engine"])
    with pytest.raises(KeyError, match="engine"):
        why_not(cell, cell.dataset.prepare(None))
