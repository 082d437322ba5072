import pytest
import torch
from torch import nn

from fedspan.benchmark.component import Component
from fedspan.benchmark.errors import CorruptFile, Incompatible
from fedspan.benchmark.method import compose
from fedspan.benchmark.training.state import Paths, Row, State
from fedspan.benchmark.tree import clone
from fedspan.methods.addons.babu import BABU
from fedspan.methods.addons.etf import ETF
from fedspan.methods.addons.ffc import FFC
from fedspan.methods.addons.spherefed import SphereFed
from fedspan.methods.addons.topk import TopK
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.methods.algorithms.fedbabu import FedBABU
from tests.helpers import start, toy_cell, trained, transposed, weights
from tests.toys import LocalHead, LocalNorm, NormNet, Scaffold, Sphere, toy


@toy("addon", "toy_transposing")
class Transposing(Component):
    """Puts the matrices of its server tree into another memory layout every round."""

    def init(self, params, shared, buffers):
        return clone(shared), {}

    def server(self, delta, agg):
        return delta, {path: transposed(leaf) for path, leaf in agg.server.items()}


def paths_of(*stack):
    return start(toy_cell(*stack, model=NormNet())).paths


def test_everything_travels_by_default():
    paths = paths_of(FedAvg())
    assert paths.shared == paths.trainable
    assert "body.1.weight" in paths.shared
    assert paths.own == frozenset()
    assert paths.shared_buffers == {"body.1.running_mean", "body.1.running_var"}


def test_layers_that_stay_take_their_buffers_with_them():
    paths = paths_of(LocalNorm())
    norm = {"body.1.weight", "body.1.bias", "body.1.running_mean", "body.1.running_var"}
    assert paths.own == norm
    assert not paths.shared & norm
    assert paths.shared_buffers == frozenset()
    assert "body.1.weight" in paths.trainable


def test_frozen_weights_do_not_travel_and_do_not_stay_either():
    paths = paths_of(FedAvg(), Sphere())
    assert "head.weight" not in paths.shared | paths.trainable | paths.own


def test_step_counters_are_no_state():
    assert not any("num_batches_tracked" in path for path in start(toy_cell(model=NormNet())).state.pack())


def test_states_are_given_the_shared_weights():
    seen = {}

    class Looking(LocalHead):
        def init(self, params, shared, buffers):
            seen.update(params=set(params), shared=set(shared))
            return {}, {}

    start(toy_cell(Looking()))
    assert seen["params"] - seen["shared"] == {"head.weight", "head.bias"}


def test_a_client_without_anything_to_remember_has_no_row():
    assert trained(toy_cell(model=NormNet())).state.rows == {}
    assert set(trained(toy_cell(Scaffold())).state.rows) == set(range(6))


def test_packing_and_unpacking_is_the_identity():
    cell = toy_cell(Scaffold(), model=NormNet())
    run, fresh = trained(cell), start(cell)
    fresh.state.unpack(run.state.pack(), 3)
    assert fresh.state.round == 3
    assert weights(fresh) == weights(run)
    assert [list(tree) for tree in fresh.state.server.values()] == [list(tree) for tree in run.state.server.values()]


DAMAGE = [
    lambda flat: flat.pop("params/head.bias"),
    lambda flat: flat.update({"buffers/x": torch.ones(1)}),
    lambda flat: flat.pop("server/toy_scaffold/head.bias"),
    lambda flat: flat.update({"client/2/toy_scaffold/head.bias": torch.ones(1)}),
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_tensors_of_another_model_or_method_are_refused_and_nothing_is_taken_over(damage):
    run = start(toy_cell(Scaffold(), model=NormNet()))
    run.advance()
    before, flat = weights(run), run.state.pack()
    damage(flat)
    with pytest.raises(CorruptFile, match="another model"):
        run.state.unpack(flat, 7)
    assert (weights(run), run.state.round) == (before, 1)


def test_paths_ask_with_the_module_that_owns_a_weight():
    owners = {}

    class Asking(FedAvg):
        def shared(self, path, module):
            owners[path] = type(module)
            return True

    net = start(toy_cell(model=NormNet())).trainer.net
    Paths.of(net, compose(Asking()))
    assert issubclass(owners["body.0.weight"], nn.Conv2d)
    assert issubclass(owners["body.1.running_var"], nn.BatchNorm2d)
    assert issubclass(owners["head.bias"], nn.Linear)


def test_rows_are_kept_in_host_memory():
    state = State(0, {"w": torch.ones(1)}, {}, {}, Row({}, {"a": {}}))
    state.remember(4, Row({"w": torch.ones(2)}, {"a": {}}))
    assert state.row(4).own["w"].device.type == "cpu"
    assert state.row(5) is state.first_row


@pytest.mark.parametrize("addon", [FFC(every=1), TopK(), Transposing()], ids=lambda addon: addon.name)
def test_trees_have_the_memory_layout_that_a_resume_gives_them(addon):
    run, resumed = (start(toy_cell(FedAvg(), addon, model=NormNet())) for _ in range(2))
    run.advance()
    before = run.state.pack()
    resumed.state.unpack({path: leaf.clone(memory_format=torch.contiguous_format) for path, leaf in before.items()}, 1)
    after = resumed.state.pack()
    assert {path: leaf.stride() for path, leaf in before.items()} == {path: after[path].stride() for path in before}


@pytest.mark.parametrize("addon", [BABU(), ETF(), SphereFed()], ids=lambda addon: addon.name)
def test_what_freezes_only_what_another_component_freezes_too_is_refused(addon):
    with pytest.raises(Incompatible, match=f"'fedbabu' does nothing beside '{addon.name}', which freezes the same"):
        start(toy_cell(FedBABU(), addon))


def test_what_freezes_the_same_weights_and_does_more_is_accepted():
    @toy("addon", "toy_louder")
    class Louder(Component):
        def trainable(self, path):
            return not path.startswith("head.")

        def penalty(self, step):
            return step.logits.square().mean()

    start(toy_cell(FedAvg(), Louder(), ETF()))
    with pytest.raises(Incompatible, match="'babu' does nothing beside 'toy_louder'"):
        start(toy_cell(FedAvg(), Louder(), BABU()))
