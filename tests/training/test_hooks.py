"""What the views of hooks show: positions, keyed draws, a client's images, other models, weights, bytes on the wire."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from fedspan.benchmark.component import Component, Wire
from fedspan.benchmark.errors import Incompatible
from fedspan.benchmark.method import compose, disclosure
from fedspan.benchmark.training.executors.graph import Graph
from fedspan.benchmark.training.local import Visit
from fedspan.benchmark.training.scoring import score_stages
from fedspan.benchmark.tree import digest, nbytes, overwrite
from fedspan.methods.algorithms.fedavg import FedAvg
from fedspan.methods.algorithms.feddisco import FedDisco
from fedspan.methods.algorithms.local_only import LocalOnly
from tests.contract.tape import Tapes
from tests.helpers import start, toy_cell, trained
from tests.methods.by_hand import DOUBLE, agree, mean, minus, numbers, plain_gradient, plus, trained_by_hand
from tests.toys import Balance, LocalHead, Median, Messages, NormNet, OwnHead, Rounded, TwoModels, toy


def addon_with(**members):
    return toy("addon", "probe")(type("Probe", (Component,), members))()


def probing(hook):
    """Return a run of one round whose client 3 has trained, and the view that it had in `hook`."""
    seen = []

    def look(self, *inputs):
        seen.append(inputs[-1])
        return getattr(Component, hook)(self, *inputs)

    run = start(toy_cell(FedAvg(), addon_with(**{hook: look}), model=NormNet(), protocol=DOUBLE))
    run.trainer.train(run.state, 3)
    return run, seen[-1]


# positions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["loop", "vmap", "graph"])
def test_a_step_knows_its_number_its_epoch_and_how_many_there_are(executor, monkeypatch):
    """The pulls of a step that weighs its position are summed by SGD: another position gives other weights."""
    monkeypatch.setattr(Graph, "machine", Tapes)

    def pull(self, step):
        return sum(w.square().sum() for w in step.params.values()) * (step.number + 10 * step.epoch) / (9 * step.steps)

    cell = toy_cell(FedAvg(), addon_with(penalty=pull), protocol=DOUBLE | {"rounds": 1, "local_epochs": 3})
    run = start(cell, executor=executor)
    w, sizes = numbers(run.state.params), [run.trainer.data.size(client) for client in range(6)]
    ends = [trained_by_hand(run, w, client, 0, gradient=Pulled(run, client, cell)) for client in range(6)]
    run.advance()
    agree(run.state.params, plus(w, mean([minus(end, w) for end, _ in ends], sizes)))


class Pulled:
    """The gradient of the cross-entropy and of that pull, counting steps."""

    def __init__(self, run, client, cell):
        self.each = len(run.trainer.data.batch_sizes(run.trainer.data.size(client)))
        self.steps, self.number = self.each * cell.protocol.local_epochs, 0

    def __call__(self, w, x, y):
        factor = 2 * (self.number + 10 * (self.number // self.each)) / (9 * self.steps)
        self.number += 1
        return plus(plain_gradient(w, x, y), w, factor)


# draws --------------------------------------------------------------------------------------------


def draws_of(names, rounds=2, clients=(0, 3)):
    """Return what each component draws in each of its hooks, by component, hook, round and client."""
    found = {}

    def end(self, delta, local):
        found[self.name, "end", local.round, local.n] = torch.rand(3, generator=local.rng)
        return delta, {}, {}

    def begin(self, params, local):
        found[self.name, "start", local.round, local.n] = torch.rand(3, generator=local.rng)
        return params, {}

    def server(self, delta, agg):
        found[self.name, "server", agg.round, 0] = torch.rand(3, generator=agg.rng)
        return delta, {}

    hooks = {"client_end": end, "client_start": begin, "server": server}
    addons = [toy("addon", name)(type(name, (Component,), hooks))() for name in names]
    run = start(toy_cell(FedAvg(), *addons, protocol={"rounds": rounds}))
    for _ in range(rounds):
        sums, _ = run.executor.run(run.state, clients)
        run.aggregate(sums)
        run.state.round += 1
    return found


def test_no_two_draws_are_the_same():
    found = draws_of(["a", "b"])
    assert len(found) == 2 * 2 * (2 + 2 + 1)
    assert len({tuple(values.tolist()) for values in found.values()}) == len(found)


def test_deltas_have_the_order_of_the_net_in_every_process():
    """Draws follow it leaf by leaf; sets of names have another order in each process."""
    seen = []

    def look(self, delta, local):
        seen.append(list(delta))
        return delta, {}, {}

    run = start(toy_cell(FedAvg(), addon_with(client_end=look), model=NormNet()))
    run.advance()
    assert seen == [list(run.state.params)] * 6


def test_draws_depend_neither_on_other_components_nor_on_other_clients():
    everything = draws_of(["a", "b"])
    for other in (draws_of(["b"]), draws_of(["a", "b"], clients=(3,))):
        assert other
        assert all(torch.equal(values, everything[where]) for where, values in other.items())


# a client's images and other models ---------------------------------------------------------------


def images_of(run, client):
    data = run.trainer.data
    images = data.train.take(data.indices[client])
    return data.normalise(images.x), images.y


def test_a_client_view_shows_the_outputs_of_all_its_images_in_evaluation_mode():
    run, local = probing("client_end")
    x, y = images_of(run, 3)
    net = run.trainer.net.eval()
    with torch.no_grad():
        features, logits = functional_call(net, {**local.params, **local.buffers}, (x,))
    run.trainer.net.train()
    ours = local.apply(local.params)
    assert torch.equal(local.y, y)
    torch.testing.assert_close(ours[0], features)
    torch.testing.assert_close(ours[1], logits)
    before = local.apply(local.start)[1]
    assert not torch.allclose(before, logits), "the weights that are asked for count"
    assert not torch.allclose(local.apply(local.params, run.state.buffers)[1], logits), "so do the statistics"


def test_weights_that_a_call_leaves_out_are_the_clients_current_ones():
    _, local = probing("client_end")
    elsewhere = {path: leaf + 1 for path, leaf in local.params.items()}
    [first, *others] = local.params
    part = {first: local.start[first]}
    whole = {**local.params, **part}
    wanted, gradient = local.apply(whole)[1], local.grad_at(whole)
    local.apply(elsewhere)
    assert others
    assert torch.equal(local.apply(part)[1], wanted)
    assert torch.equal(local.apply(part, {})[1], wanted)
    assert all(torch.equal(leaf, gradient[path]) for path, leaf in local.grad_at(part).items())


@pytest.mark.parametrize("rows", [None, [0, 2, 5]])
def test_a_client_view_gives_gradients_of_the_loss_and_statistics_of_its_images(rows):
    run, local = probing("client_end")
    x, y = images_of(run, 3)
    chosen = slice(None) if rows is None else rows
    leaves = {path: leaf.clone().requires_grad_() for path, leaf in local.start.items()}
    statistics = {path: leaf.clone() for path, leaf in run.state.buffers.items()}
    _, logits = functional_call(run.trainer.net.train(), {**leaves, **statistics}, (x[chosen],))
    exact = torch.autograd.grad(F.cross_entropy(logits, y[chosen]), list(leaves.values()))
    where = None if rows is None else torch.tensor(rows)
    grads, after = local.learn_at(local.start, run.state.buffers, where)
    for path, leaf in zip(leaves, exact, strict=True):
        torch.testing.assert_close(grads[path], leaf)
        assert torch.equal(local.grad_at(local.start, where)[path], grads[path])
    for path, leaf in statistics.items():
        torch.testing.assert_close(after[path], leaf)
    assert not torch.equal(after["body.1.running_mean"], run.state.buffers["body.1.running_mean"])


@pytest.mark.parametrize("rows", [None, [0, 2, 5]])
def test_a_client_view_gives_gradients_of_what_the_model_puts_out(rows):
    run, local = probing("client_start")
    x, _ = images_of(run, 3)
    leaves = {path: leaf.clone().requires_grad_() for path, leaf in local.start.items()}
    net = run.trainer.net.eval()
    features, logits = functional_call(net, {**leaves, **local.buffers}, (x[slice(None) if rows is None else rows],))
    run.trainer.net.train()

    def spread(features, logits):
        return features.square().sum() - logits.abs().mean()

    exact = torch.autograd.grad(spread(features, logits), list(leaves.values()))
    ours = local.output_grad_at(local.start, spread, None if rows is None else torch.tensor(rows))
    for path, leaf in zip(leaves, exact, strict=True):
        torch.testing.assert_close(ours[path], leaf)
    assert run.trainer.net.training, "the next step would be one of evaluation"


def test_a_step_gives_gradients_and_statistics_of_another_model_on_part_of_its_batch():
    run, _ = probing("carry")
    seen = []

    def look(self, grads, step):
        if not seen:
            halves = [step.grad_at(step.start, rows) for rows in (slice(0, 3), slice(3, None), None)]
            again = step.learn_at(step.start, run.state.buffers)
            seen.append((step.x.clone(), step.y.clone(), *halves, again))
        return {}

    other = start(toy_cell(FedAvg(), addon_with(carry=look), model=NormNet(), protocol=DOUBLE))
    other.trainer.train(other.state, 5)
    x, y, first, second, whole, (grads, after) = seen[0]
    for part, ours in ((slice(0, 3), first), (slice(3, None), second), (slice(None), whole)):
        leaves = {path: leaf.clone().requires_grad_() for path, leaf in other.state.params.items()}
        statistics = {path: leaf.clone() for path, leaf in other.state.buffers.items()}
        _, logits = functional_call(other.trainer.net.train(), {**leaves, **statistics}, (x[part],))
        exact = torch.autograd.grad(F.cross_entropy(logits, y[part]), list(leaves.values()))
        for path, leaf in zip(leaves, exact, strict=True):
            torch.testing.assert_close(ours[path], leaf)
    assert all(torch.equal(grads[path], whole[path]) for path in whole)
    for path, leaf in statistics.items():
        torch.testing.assert_close(after[path], leaf)


def test_what_hooks_compute_on_images_is_metered_apart_from_training():
    def look(self, delta, local):
        local.apply(local.params)
        return delta, {}, {}

    plain, looking = trained(toy_cell()), trained(toy_cell(FedAvg(), addon_with(client_end=look)))
    assert looking.meter.flops["train"] == plain.meter.flops["train"]
    images = 94 * looking.cell.protocol.rounds
    assert looking.meter.flops["hooks"] == 2 * images * (72 * 5 + 5 * 3)


# where clients start, what they carry ----------------------------------------------------------------


@pytest.mark.parametrize("carries", [False, True])
def test_what_clients_note_at_their_start_is_seen_until_their_next(carries):
    seen = []

    def init(self, params, shared, buffers):
        return {}, {"visits": torch.zeros(()), "received": params["head.bias"].clone()}

    def begin(self, params, local):
        return params, {"visits": local.client["visits"] + 1, "received": params["head.bias"]}

    def carry(self, grads, step):
        return {"visits": step.client["visits"] + 10, "received": step.client["received"] + 1}

    def end(self, delta, local):
        seen.append((local.round, local.client["visits"].item()))
        return delta, {}, dict(local.client)

    hooks = {"init": init, "client_start": begin, "client_end": end} | ({"carry": carry} if carries else {})
    run, alone = start(toy_cell(FedAvg(), addon_with(**hooks), participation=0.5)), start(toy_cell(participation=0.5))
    visits = dict.fromkeys(range(6), 0.0)
    while not run.finished:
        here, round = run.participants(), run.state.round
        run.advance()
        alone.advance()
        for client in here:
            steps = int(run.trainer.position(run.trainer.data.size(client)).steps) if carries else 0
            visits[client] += 1 + 10 * steps
        assert seen[-len(here) :] == [(round, visits[client]) for client in here]
    assert digest(run.state.params) == digest(alone.state.params), "a tree shares the memory of the weights"


def test_deltas_are_taken_from_the_weights_that_clients_received():
    def shifted(self, params, local):
        return {path: leaf + 0.25 for path, leaf in params.items()}, {}

    run = start(toy_cell(FedAvg(), addon_with(client_start=shifted), protocol=DOUBLE | {"rounds": 1}))
    w, sizes = numbers(run.state.params), [run.trainer.data.size(client) for client in range(6)]
    began = {path: leaf + 0.25 for path, leaf in w.items()}
    ends = [trained_by_hand(run, began, client, 0)[0] for client in range(6)]
    run.advance()
    agree(run.state.params, mean(ends, sizes))


def test_trees_can_swap_their_leaves():
    a, b = torch.tensor([1.0]), torch.tensor([2.0])
    tree = {"a": a, "b": b, "c": torch.tensor([3.0])}
    overwrite(tree, {"a": b, "b": a, "c": tree["c"]})
    assert {path: leaf.item() for path, leaf in tree.items()} == {"a": 2.0, "b": 1.0, "c": 3.0}
    assert tree["a"] is a, "it stays in its memory"


def test_what_is_carried_is_no_others_and_leaves_the_first_row_as_it_was():
    run = start(toy_cell(TwoModels(), protocol={"rounds": 1}))
    first = {path: leaf.clone() for path, leaf in run.state.first_row.states["toy_ditto"].items()}
    run.advance()
    assert all(torch.equal(leaf, first[path]) for path, leaf in run.state.first_row.states["toy_ditto"].items())
    kept = [run.state.row(client).states["toy_ditto"]["head.weight"] for client in range(6)]
    assert len({leaf.data_ptr() for leaf in kept}) == 6
    assert not any(torch.equal(leaf, first["head.weight"]) for leaf in kept)


# weights and single updates -------------------------------------------------------------------------


def test_weights_are_those_of_weights_and_statistics_alike():
    run = start(toy_cell(Balance(), model=NormNet(), participation=0.5, protocol=DOUBLE | {"rounds": 1}))
    chosen, data = run.participants(), run.trainer.data
    counts = np.array([np.bincount(data.train.y[data.indices[c]].numpy(), minlength=3) for c in chosen])
    share = counts / counts.sum(1, keepdims=True)
    by_hand = np.maximum(counts.sum(1) / 94 - np.abs(share - 1 / 3).sum(1) / 10 + 0.2, 0)
    assert len(chosen) == 3
    assert not np.allclose(by_hand / by_hand.sum(), counts.sum(1) / counts.sum())
    done = [run.trainer.train(run.state, client) for client in chosen]
    before = numbers(run.state.params)
    run.advance()
    agree(run.state.params, plus(before, mean([numbers(one.delta) for one in done], by_hand)))
    agree(run.state.buffers, mean([numbers(one.buffers) for one in done], by_hand))


def test_single_updates_are_the_participants_and_nothing_else_of_the_round_changes():
    seen = {}

    class Watching(Median):
        def aggregate(self, updates, agg):
            seen.update(updates)
            return super().aggregate(updates, agg)

    run, plain = (start(toy_cell(one, participation=0.5, protocol={"rounds": 1})) for one in (Watching(), None))
    deltas = {client: plain.trainer.train(plain.state, client).delta for client in run.participants()}
    run.advance()
    plain.advance()
    assert seen.keys() == deltas.keys()
    assert all(torch.equal(seen[client][path], leaf) for client in deltas for path, leaf in deltas[client].items())
    assert run.meter.bytes_up == plain.meter.bytes_up


def test_who_sees_single_updates_says_so():
    for sees in (Median, Messages):
        assert disclosure(sees) == "the server sees single clients' updates, not sums alone"
        assert compose(sees()).sees_updates
    assert disclosure(FedDisco) == "the server sees each client's number of images per class, not sums alone"
    assert disclosure(FedAvg) == ""
    assert not compose(FedAvg()).sees_updates


# bytes on the wire ----------------------------------------------------------------------------------


def test_the_wire_is_chained_and_counted_beside_uploads_and_statistics():
    def upload(self, delta, local):
        return delta, {"x": torch.zeros(5)}, {}

    def sparse(self, size, delta, local):
        assert size == Wire(sum(leaf.numel() for leaf in delta.values()), 8.0, 32.0), "the other came first"
        return Wire(10, size.bits, size.extra + 10 * 32)

    run = start(
        toy_cell(
            FedAvg(), Rounded(), addon_with(client_end=upload, wire=sparse), model=NormNet(), protocol={"rounds": 1}
        )
    )
    run.advance()
    each = (10 * 8 + 32 + 10 * 32) // 8 + 5 * 4 + nbytes(run.state.buffers)
    assert run.meter.bytes_up == 6 * each
    plain = start(toy_cell(model=NormNet(), protocol={"rounds": 1}))
    plain.advance()
    assert run.meter.bytes_down == plain.meter.bytes_down


@pytest.mark.parametrize(
    ("size", "length"), [(Wire(0, 32), 0), (Wire(3, 1), 1), (Wire(8, 1, 1), 2), (Wire(0, 0, 8), 1)]
)
def test_bits_are_rounded_up_to_bytes(size, length):
    assert size.bytes == length


def test_there_must_be_something_to_write():
    with pytest.raises(Incompatible, match="'toy_rounded' works on updates, and 'local_only' lets none travel"):
        start(toy_cell(LocalOnly(), Rounded()))


# own models -------------------------------------------------------------------------------------------


def test_own_models_are_scored_beside_the_global_one_and_personalised_further():
    run = trained(toy_cell(TwoModels(), model=NormNet()))
    trees = {client: run.state.row(client).states["toy_ditto"] for client in range(6)}
    scores = score_stages(run)
    assert scores["trained"]["accuracy"] is not None
    losses = []
    for client in range(6):
        run.trainer.load(run.state, run.state.first_row)
        run.trainer.put({path: leaf for path, leaf in trees[client].items() if path != "steps"})
        net, data = run.trainer.net.eval(), run.trainer.data
        with torch.no_grad():
            losses.append(float(F.cross_entropy(net(data.normalise(data.test.x))[1].double(), data.test.y)))
    assert scores["personalised"]["loss"] == pytest.approx(np.mean(losses))
    assert scores["personalised"]["loss"] != scores["trained"]["loss"]
    both = score_stages(trained(toy_cell(TwoModels(), OwnHead(), model=NormNet())))
    assert both["trained"] == scores["trained"]
    assert both["personalised"] != scores["personalised"]


def test_trees_that_own_models_are_made_of_outlive_training():
    run = trained(toy_cell(TwoModels()))
    whole = score_stages(run)
    run.state = run.state.models_only()
    assert score_stages(run) == whole
    assert not trained(toy_cell(LocalHead())).state.models_only().rows[0].states["toy_fedrep"]


def test_two_components_with_weights_do_not_go_together():
    for hook, function in (
        ("weights", lambda self, counts, samples: counts[:, 0]),
        ("own", lambda self, params, local: {}),
        ("aggregate", lambda self, updates, agg: updates[0]),
    ):
        one, two = (toy("addon", name)(type(name, (Component,), {hook: function}))() for name in "ab")
        with pytest.raises(Incompatible, match=f"'a' and 'b' both replace '{hook}'"):
            compose(FedAvg(), [one, two])


def test_a_visit_keeps_what_was_received_when_its_client_starts_elsewhere():
    def away(self, params, local):
        return {path: leaf * 0 for path, leaf in params.items()}, {}

    run = start(toy_cell(FedAvg(), addon_with(client_start=away)))
    visit = run.trainer.visit(run.state, 0)
    assert isinstance(visit, Visit)
    assert all(torch.equal(visit.start[path], leaf) for path, leaf in run.state.params.items())
    assert not any(leaf.any() for leaf in run.trainer.params.values())
