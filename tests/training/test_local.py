import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from fedspan.benchmark.component import Component
from fedspan.benchmark.errors import Diverged
from fedspan.methods.algorithms.fedavg import FedAvg
from tests.helpers import start, toy_cell, trained, transposed, weights
from tests.toys import LocalHead, LocalNorm, NormNet, Sharpness, Sphere, in_head, toy

HEAVY = {"momentum": 0.9, "weight_decay": 0.1, "lr": 0.1}


def same(a, b):
    return all(torch.equal(a[path], b[path]) for path in a)


def part(tree, chosen):
    return {path: leaf.detach().clone() for path, leaf in tree.items() if chosen(path)}


# frozen and own weights ---------------------------------------------------------------------------


def test_frozen_weights_never_move_even_under_momentum_and_weight_decay():
    run = start(toy_cell(None, Sphere(), protocol=HEAVY))
    before = part(run.state.params, in_head)
    done = run.trainer.train(run.state, 5)
    assert same(part(run.trainer.params, in_head), before)
    assert not set(done.delta) & set(before)
    while not run.finished:
        run.advance()
    assert same(part(run.state.params, in_head), before)


def test_in_a_phase_only_its_weights_move():
    seen = []

    class Watching(LocalHead):
        def grads(self, grads, step):
            seen.append((set(grads), part(step.params, lambda path: True)))
            return grads

    run = start(toy_cell(Watching(), protocol=HEAVY | {"local_epochs": 1}))
    run.trainer.train(run.state, 5)
    steps = len(run.trainer.data.batch_sizes(run.trainer.data.size(5)))
    assert [names for names, _ in seen] == [{"head.weight", "head.bias"}] * steps + [
        {"body.1.weight", "body.1.bias"}
    ] * steps
    body = [part(params, lambda path: not in_head(path)) for _, params in seen]
    head = [part(params, in_head) for _, params in seen]
    assert all(same(body[0], other) for other in body[: steps + 1])
    assert all(same(head[steps], other) for other in head[steps:])
    assert not same(head[0], head[steps])
    assert not same(body[steps], body[-1])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_gradients_that_a_hook_returns_may_have_any_memory_layout(momentum):
    class Transposing(FedAvg):
        def grads(self, grads, step):
            return {path: transposed(leaf) for path, leaf in grads.items()}

    other, plain = (trained(toy_cell(one, protocol={"momentum": momentum})) for one in (Transposing(), FedAvg()))
    assert same(other.state.params, plain.state.params)


def test_momentum_does_not_leak_from_phase_to_phase():
    class Idle(FedAvg):
        def phases(self, epochs):
            return [(1, in_head), (1, lambda path: not in_head(path)), (1, in_head)]

        def grads(self, grads, step):
            self_moves = "head.weight" in grads and not seen["body"]
            seen["body"] |= "head.weight" not in grads
            return grads if self_moves else {path: torch.zeros_like(g) for path, g in grads.items()}

    seen = {"body": False}
    run = start(toy_cell(Idle(), protocol={"momentum": 0.9, "weight_decay": 0.0, "batch_size": 100}))
    done = run.trainer.train(run.state, 5)
    g = run.trainer
    x, y = next(g.data.epoch(5, 0, 0))
    leaves = {path: leaf.clone().requires_grad_() for path, leaf in run.state.params.items()}
    gradient = torch.autograd.grad(F.cross_entropy(functional_call(g.net, leaves, (x,))[1], y), leaves["head.bias"])[0]
    torch.testing.assert_close(done.delta["head.bias"], -run.cell.protocol.lr * gradient)


@pytest.mark.parametrize(("stack", "own"), [((LocalHead(),), "head."), ((LocalNorm(),), "body.1.")])
def test_weights_that_stay_are_the_clients_own_and_never_meet(stack, own):
    run = start(toy_cell(*stack, model=NormNet(), participation=0.5))
    globe = part(run.state.params | run.state.buffers, lambda path: path.startswith(own))
    first = {}
    while not run.finished:
        rows = dict(run.state.rows)
        run.advance()
        for client, row in run.state.rows.items():
            if client in rows and rows[client] is row:
                continue  # it did not train
            assert set(row.own) >= {path for path in globe if "weight" in path}
            assert not same(row.own, globe)
            first.setdefault(client, row)
    assert same(part(run.state.params | run.state.buffers, lambda path: path.startswith(own)), globe)
    kept = [row.own for row in run.state.rows.values()]
    assert all(not same(a, b) for i, a in enumerate(kept) for b in kept[:i])


def test_a_client_goes_on_with_its_own_weights():
    run = start(toy_cell(LocalHead()))
    run.advance()
    left = run.state.row(3).own
    start_of = {}

    class Looking(LocalHead):
        def client_end(self, delta, local):
            start_of.update(local.start)
            return super().client_end(delta, local)

    looking = start(toy_cell(Looking()))
    looking.advance()
    start_of.clear()
    looking.trainer.train(looking.state, 3)
    assert same(left, start_of)


# the step -----------------------------------------------------------------------------------------


def test_a_step_shows_the_batch_the_weights_and_the_state_of_its_own_component():
    seen = {}

    @toy("addon", "toy_looking")
    class Looking(Component):
        def init(self, params, shared, buffers):
            return {"mine": torch.tensor(7.0)}, {"id": torch.tensor(3.0)}

        def broadcast(self, server):
            return {"half": server["mine"] / 2}

        def penalty(self, step):
            seen.setdefault("step", (step.params["head.bias"].detach().clone(), step.start["head.bias"].clone()))
            seen["shapes"] = (step.x.shape, step.y.shape, step.features.shape, step.logits.shape)
            seen["counts"], seen["state"] = step.counts.tolist(), (dict(step.server), dict(step.client))
            seen["round"], seen["protocol"] = step.round, step.protocol
            head = (step.params["head.weight"], step.params["head.bias"])
            torch.testing.assert_close(F.linear(step.features, *head), step.logits)
            return 0 * step.logits.sum()

    run = start(toy_cell(FedAvg(), Looking(), Sharpness()))
    run.advance()
    run.trainer.train(run.state, 5)
    n = run.trainer.data.size(5)
    last = n % 8 or 8
    assert seen["shapes"] == ((last, 2, 6, 6), (last,), (last, 5), (last, 3))
    assert seen["counts"] == run.trainer.data.counts(5).tolist()
    assert sum(seen["counts"]) == n
    assert seen["state"] == ({"half": 3.5}, {"id": 3.0})
    assert (seen["round"], seen["protocol"]) == (1, run.cell.protocol)
    assert torch.equal(*seen["step"]), "the first step starts at the start"


def test_apply_evaluates_other_weights_without_touching_anything():
    found = []

    @toy("addon", "toy_looking")
    class Looking(Component):
        def penalty(self, step):
            features, logits = step.apply(step.start)
            assert not features.requires_grad
            assert not logits.requires_grad
            running = {"body.1.running_mean": torch.full((4,), 0.3), "body.1.running_var": torch.full((4,), 2.0)}
            found.append((step.x, step.start, features, logits, step.apply(step.start, running)[0]))
            return 0 * step.features.sum()

    cell = toy_cell(FedAvg(), Looking(), model=NormNet())
    run, plain = start(cell), start(toy_cell(model=NormNet()))
    assert same(run.trainer.train(run.state, 5).buffers, plain.trainer.train(plain.state, 5).buffers)
    x, params, features, logits, elsewhere = found[-1]
    convolved = F.conv2d(x, params["body.0.weight"], params["body.0.bias"])
    normed = F.batch_norm(convolved, torch.zeros(4), torch.ones(4), params["body.1.weight"], params["body.1.bias"])
    expected = F.avg_pool2d(F.relu(normed), 2).flatten(1)
    torch.testing.assert_close(features, expected)
    torch.testing.assert_close(logits, F.linear(expected, params["head.weight"], params["head.bias"]))
    assert not torch.allclose(features, elsewhere)


def test_weights_that_apply_is_not_given_are_the_current_ones():
    pairs = []

    @toy("addon", "toy_looking")
    class Looking(Component):
        def penalty(self, step):
            head = {path: leaf for path, leaf in step.start.items() if path.startswith("head.")}
            expected = F.linear(step.apply(dict(step.params))[0], head["head.weight"], head["head.bias"])
            step.apply({path: torch.zeros_like(leaf) for path, leaf in step.params.items()})
            pairs.append((step.apply(head)[1], expected))
            return 0 * step.features.sum()

    run = start(toy_cell(FedAvg(), Looking(), model=NormNet()))
    run.trainer.train(run.state, 5)
    assert len(pairs) > 1
    for logits, expected in pairs:
        torch.testing.assert_close(logits, expected)


def test_grad_at_the_current_weights_is_the_gradient_itself():
    compared = []

    @toy("addon", "toy_looking")
    class Looking(Component):
        def penalty(self, step):
            return 0.1 * step.features.square().mean()

        def grads(self, grads, step):
            again = step.grad_at(step.params)
            assert again.keys() == grads.keys()
            compared.extend((again[path], g) for path, g in grads.items())
            return grads

    run = start(toy_cell(FedAvg(), Looking(), model=NormNet(), protocol={"precision": "float64"}))
    run.trainer.train(run.state, 5)
    assert compared
    for again, g in compared:
        torch.testing.assert_close(again, g)


def test_a_gradient_elsewhere_leaves_no_trace():
    @toy("addon", "toy_looking")
    class Looking(Component):
        def grads(self, grads, step):
            step.grad_at(step.start)
            return grads

    looking, plain = (trained(toy_cell(FedAvg(), *addons, model=NormNet())) for addons in ([Looking()], []))
    assert weights(looking) == weights(plain)


# the protocol -------------------------------------------------------------------------------------


def test_the_schedule_reaches_the_steps():
    """In the last of very many rounds the cosine has come down to nothing."""
    run = start(toy_cell(protocol={"schedule": "cosine", "rounds": 10**6}))
    moved = max(float(leaf.abs().max()) for leaf in run.trainer.train(run.state, 5).delta.values())
    run.state.round = 10**6 - 1
    still = max(float(leaf.abs().max()) for leaf in run.trainer.train(run.state, 5).delta.values())
    assert still < 1e-9 < 1e-3 < moved


TYPES = [("float32", torch.float32), ("float64", torch.float64), ("bf16", torch.float32)]


@pytest.mark.parametrize(("precision", "dtype"), TYPES)
def test_weights_have_the_precisions_type(precision, dtype):
    run = trained(toy_cell(model=NormNet(), protocol={"precision": precision, "rounds": 1}))
    assert {leaf.dtype for leaf in run.state.pack().values()} == {dtype}


def test_bf16_computes_otherwise_but_close_by():
    runs = [trained(toy_cell(protocol={"precision": precision, "rounds": 1})) for precision in ("bf16", "float32")]
    assert weights(runs[0]) != weights(runs[1])
    for path, leaf in runs[0].state.params.items():
        torch.testing.assert_close(leaf, runs[1].state.params[path], atol=0.02, rtol=0.05)


def test_the_mean_loss_is_over_images_not_batches():
    class Counting(FedAvg):
        def loss(self, step):
            return 0 * step.logits.sum() + len(step.y)

    run = start(toy_cell(Counting(), protocol={"batch_size": 8}))
    n = run.trainer.data.size(5)
    assert run.trainer.train(run.state, 5).loss == pytest.approx((n // 8 * 64 + (n % 8) ** 2) / n)


def test_a_loss_that_is_no_number_is_told_with_its_round_and_client():
    class Broken(FedAvg):
        def loss(self, step):
            return step.logits.sum() * float("nan")

    run = start(toy_cell(Broken()))
    with pytest.raises(Diverged, match="round 1, client 4: the training loss is nan"):
        run.trainer.train(run.state, 4)


@pytest.mark.parametrize("travels", [True, False])
def test_a_last_step_into_infinity_is_told_with_its_round_and_client(travels):
    """No loss is computed after it; the weights may travel or stay."""

    class Leap(FedAvg):
        def grads(self, grads, step):
            return {path: torch.full_like(leaf, float("inf")) for path, leaf in grads.items()}

        def shared(self, path, module):
            return travels

    run = start(toy_cell(Leap(), protocol={"local_epochs": 1, "batch_size": 94}))
    with pytest.raises(Diverged, match="round 1, client 4: the trained weights are not finite"):
        run.trainer.train(run.state, 4)


def test_training_leaves_the_global_state_alone():
    run = start(toy_cell(model=NormNet()))
    before = weights(run)
    run.trainer.train(run.state, 5)
    assert weights(run) == before
