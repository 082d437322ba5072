"""What every registered algorithm and add-on must keep, and the toy methods that use every hook besides."""

import dataclasses
import functools
import inspect
import random
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedspan.benchmark.component import Aggregate, Component, Local, Step, acts_in
from fedspan.benchmark.download import Download
from fedspan.benchmark.errors import Incompatible
from fedspan.benchmark.method import SEEDED, compose
from fedspan.benchmark.registry import plugins
from fedspan.benchmark.running.cell_run import run_cell
from fedspan.benchmark.spec.diagnostics import Diagnostics
from fedspan.benchmark.training.saving import resume, save
from fedspan.benchmark.training.scoring import score_stages
from fedspan.benchmark.tree import digest
from fedspan.methods.algorithms.fedavg import FedAvg

from ..helpers import counted, how, numbers, record_in, start, toy_cell, trained, weights
from ..toys import NormNet, PlainNet, toy_stacks

REGISTERED = [cls for kind in ("algorithm", "addon") for cls in plugins(kind).values()]
HOOKS = [name for name, member in vars(Component).items() if inspect.isfunction(member) and name not in ("check",)]


def alone(component):
    """Return the stack in which a component is tried: an algorithm as it is, an add-on over FedAvg."""
    return (component,) if component.kind == "algorithm" else (FedAvg(), component)


STACKS = {cls.name: alone(cls()) for cls in REGISTERED} | toy_stacks()
every_stack = pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS.keys())
PLAIN, WITH_NORM = PlainNet(), NormNet()
every_net = pytest.mark.parametrize("model", [PLAIN, WITH_NORM], ids=["plain", "batchnorm"])


SHORT = {"rounds": 2, "local_epochs": 1, "batch_size": 16}  # there are many stacks


def cell_of(stack, **parts):
    """Return a short toy cell of a stack, or skip if the stack says that it cannot work there."""
    cell = toy_cell(*stack, **parts | {"protocol": SHORT | parts.get("protocol", {})})
    try:
        start(cell)
    except Incompatible as reason:
        pytest.skip(str(reason))
    return cell


class Plain:
    """An undisturbed run of a short toy cell, and all that laws compare with it, noted before anybody goes on."""

    def __init__(self, cell):
        self.run = trained(cell)
        self.weights, self.counted, self.curve = weights(self.run), counted(self.run), dict(self.run.curve)
        self.params = {path: leaf.clone() for path, leaf in self.run.state.params.items()}
        self.scores = score_stages(self.run)


@functools.cache
def plain(stack, model=PLAIN):
    """Return the undisturbed run of a stack, which many laws share."""
    spectra = Diagnostics(spectra=True, clients=tuple(range(6)), top=4)
    return Plain(cell_of(stack, model=model, diagnostics=spectra))


def test_together_the_toy_methods_use_every_hook():
    used = {hook for stack in toy_stacks().values() for hook in HOOKS if compose(stack[0], stack[1:]).using(hook)}
    assert used == set(HOOKS)


# neutral ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [cls for cls in REGISTERED if cls.neutral], ids=lambda cls: cls.name)
@every_net
def test_neutral_settings_equal_absence_bit_for_bit(cls, model):
    here, absent = plain(alone(cls(**cls.neutral)), model), plain((FedAvg(),), model)
    assert here.params.keys() == absent.params.keys()
    changed = [path for path, leaf in here.params.items() if not torch.equal(leaf, absent.params[path])]
    assert not changed, f"with its `neutral` settings {dict(cls.neutral)} '{cls.name}' still acts on these weights"
    assert here.curve == absent.curve
    assert here.scores == absent.scores


@pytest.mark.parametrize("cls", [cls for cls in REGISTERED if cls.neutral], ids=lambda cls: cls.name)
def test_default_settings_differ_from_absence(cls):
    """By the stages or by more than rounding of the model, not by a tree that is kept; some act late in a training."""

    def scored(stack, rounds):
        run = start(cell_of(stack, protocol={"rounds": rounds}))
        while not run.finished:
            run.advance()
        return run.state.params, score_stages(run).keys()

    def differ(here, absent):
        close = (torch.allclose(leaf, absent[0][path], rtol=1e-4, atol=1e-6) for path, leaf in here[0].items())
        return here[1] != absent[1] or here[0].keys() != absent[0].keys() or not all(close)

    acts = any(differ(scored(alone(cls()), rounds), scored((FedAvg(),), rounds)) for rounds in (2, 8))
    assert acts, f"'{cls.name}' with its default settings trains the same model as FedAvg: does it overwrite any hook?"


# same shapes --------------------------------------------------------------------------------------

CHOICES = [
    pytest.param(cls(**{name: choice}), cls(**{name: quick}), id=f"{cls.name}: {name}={choice}")
    for cls in REGISTERED
    for name, choices in cls.same_shapes.items()
    for choice, quick in choices.items()
]


@pytest.mark.parametrize(("slow", "quick"), CHOICES)
@every_net
def test_choices_of_the_same_shapes_differ_in_nothing_but_values(slow, quick, model):
    here, there = (start(cell_of(alone(component), model=model)) for component in (slow, quick))
    assert here.paths == there.paths
    assert {k: v.shape for k, v in here.state.params.items()} == {k: v.shape for k, v in there.state.params.items()}
    assert weights(here) != weights(there)


# resume -------------------------------------------------------------------------------------------

RESUMED = "a run that goes on from its checkpoint"
KEEPS_STATE = "keep what lasts in the trees of `init`, not on the component"


@every_stack
@every_net
def test_a_checkpoint_in_the_middle_equals_no_interruption_bit_for_bit(stack, model, tmp_path):
    straight = plain(stack, model)
    cell = straight.run.cell
    resumed = start(cell)
    for _ in range(cell.protocol.rounds):
        resumed.advance()
        save(resumed, tmp_path / "checkpoint")
        resumed = start(cell)
        assert resume(resumed, tmp_path / "checkpoint")
    assert weights(resumed) == straight.weights, f"{RESUMED} ends with other weights; {KEEPS_STATE}"
    assert resumed.curve == straight.curve
    assert counted(resumed) == straight.counted
    assert score_stages(resumed) == straight.scores
    assert resumed.measured == straight.run.measured


@every_stack
def test_state_trees_keep_the_names_shapes_and_types_of_init(stack):
    last = plain(stack, WITH_NORM).run
    first, last = start(last.cell).state, last.state

    def form(tree):
        return {path: (leaf.shape, leaf.dtype) for path, leaf in tree.items()}

    def forms(states):
        return {name: form(tree) for name, tree in states.items()}

    assert forms(last.server) == forms(first.server)
    for row in last.rows.values():
        assert form(row.own) == form(first.first_row.own)
        assert forms(row.states) == forms(first.first_row.states)


class PowerCut(BaseException):
    pass


@every_stack
def test_an_interrupted_command_ends_with_the_record_of_an_uninterrupted_one(stack, tmp_path):
    cell = cell_of(stack, model=WITH_NORM, participation=0.5, protocol={"schedule": "cosine", "eval_every": 2})

    def cut(progress):
        if (progress.round, progress.client) == (1, min(2, progress.clients)):
            raise PowerCut

    with pytest.raises(PowerCut):
        run_cell(cell, how(tmp_path / "cut", checkpoint_seconds=0), cut)
    began = []
    again = run_cell(cell, how(tmp_path / "cut", checkpoint_seconds=0), lambda progress: began.append(progress.round))
    assert min(began) == 1, "it did not go on from the checkpoint"
    assert numbers(again) == numbers(run_cell(cell, how(tmp_path / "whole"))), f"{RESUMED} ends with another record"
    assert not list((tmp_path / "cut" / "results" / "checkpoints").iterdir())


# order and workers --------------------------------------------------------------------------------


@every_stack
def test_the_order_of_clients_leaves_no_trace(stack):
    cell = cell_of(stack, model=WITH_NORM)
    forward, backward = start(cell), start(cell)
    means = []
    for order, run in (([0, 1, 2, 3, 4, 5], forward), ([4, 2, 5, 0, 3, 1], backward)):
        sums, _ = run.executor.run(run.state, order)
        means.append(digest(sums.mean_delta({path: leaf.double() for path, leaf in run.state.params.items()})))
        run.aggregate(sums)
    assert means[0] == means[1], f"the mean update depends on the order of the clients; {KEEPS_STATE}"
    assert weights(forward) == weights(backward), "the new global model depends on the order of the clients"


@every_stack
def test_a_client_trains_the_same_whoever_trained_before_it(stack):
    cell = cell_of(stack, model=WITH_NORM)
    fresh, used = start(cell), start(cell)
    for other in (5, 1, 4):
        used.trainer.train(used.state, other)
    mine, again = fresh.trainer.train(fresh.state, 3), used.trainer.train(used.state, 3)
    assert mine.loss == again.loss
    for tree, same in ((mine.delta, again.delta), (mine.buffers, again.buffers), (mine.row.own, again.row.own)):
        assert tree.keys() == same.keys()
        alike = all(torch.equal(tree[path], same[path]) for path in tree)
        assert alike, f"a client's update depends on the clients that trained before it; {KEEPS_STATE}"


def test_another_process_makes_the_same_records_in_another_order(tmp_path):
    """It is a new interpreter, in which sets have another order."""
    cells = [toy_cell(*stack, model=WITH_NORM) for stack in STACKS.values()][:8]
    alone = [record_in((cell, tmp_path / "one")) for cell in cells]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        together = list(pool.map(record_in, [(cell, tmp_path / "two") for cell in reversed(cells)]))
    assert together[::-1] == alone


# purity -------------------------------------------------------------------------------------------


def photograph(value):
    """Return something that changes if anything below `value` changes."""
    if isinstance(value, Tensor):
        if value.device.type == "meta":
            return tuple(value.shape)
        return str(value.dtype), tuple(value.shape), value.detach().contiguous().numpy().tobytes()
    if isinstance(value, Mapping):
        return {key: photograph(item) for key, item in value.items()}
    if isinstance(value, (Step, Local, Aggregate, Download)):
        return {field.name: photograph(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, nn.Module):
        return photograph(value.state_dict())
    return value if isinstance(value, (int, float, str)) else None


def global_randomness():
    name, words, *rest = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), (name, words.tobytes(), *rest), random.getstate()


def watched(component, seen):
    """Return the same component, whose hooks assert that they change no input and draw no global random number."""
    cls = type(component)

    def watch(hook):
        original = getattr(cls, hook)

        def call(self, *inputs, **named):
            before, randomness = photograph(dict(enumerate(inputs))), global_randomness()
            result = original(self, *inputs, **named)
            assert photograph(dict(enumerate(inputs))) == before, f"{cls.name}.{hook} changed an input in place"
            if hook not in SEEDED:  # initialisers draw from the generator that the engine seeded for them
                assert global_randomness() == randomness, f"{cls.name}.{hook} drew a global random number"
            seen.add((cls.name, hook))
            return result

        return call

    hooks = {hook: watch(hook) for hook in HOOKS if getattr(cls, hook) is not getattr(Component, hook)}
    values = {field.name: getattr(component, field.name) for field in dataclasses.fields(component)}
    return type(cls.__name__, (cls,), hooks)(**values)


@every_stack
@every_net
def test_hooks_change_no_input_and_draw_no_global_random_number(stack, model):
    unwatched = plain(stack, model)
    seen = set()
    watching = [watched(component, seen) for component in stack]
    run = trained(dataclasses.replace(unwatched.run.cell, algorithm=watching[0], addons=tuple(watching[1:])))
    assert weights(run) == unwatched.weights
    assert score_stages(run) == unwatched.scores
    for component in watching:  # what `fedspan plan --costs` asks for
        component.calibration_cost(images=8, clients=2, features=4, classes=3)
    acting = {(c.name, h) for c in stack for h in HOOKS if acts_in(c, h)}
    assert seen == acting, "a hook was never called, or an idle one was"


class Listened(dict):
    """What a client received, and whether anybody asked for any of it."""

    asked = False

    def __getattribute__(self, name):
        if not name.startswith("__") and name != "asked":
            self.asked = True
        return super().__getattribute__(name)

    def __getitem__(self, path):
        self.asked = True
        return super().__getitem__(path)

    def __contains__(self, path):
        self.asked = True
        return super().__contains__(path)

    def __iter__(self):
        self.asked = True
        return super().__iter__()


def listening(component, asked):
    """Return the same component; `asked` gets the hooks on clients that look at what the server sent."""
    cls = type(component)

    def listen(hook):
        @functools.wraps(getattr(cls, hook))
        def call(self, *inputs):
            there = inputs[-1].server
            received = there if isinstance(there, Listened) else Listened(there)  # where one hook calls another
            result = getattr(cls, hook)(self, *inputs[:-1], dataclasses.replace(inputs[-1], server=received))
            if received.asked:
                asked.add(hook)
            return result

        return call

    on_clients = ("loss", "penalty", "grads", "carry", "shift", "client_start", "client_end", "wire", "own")
    hooks = {hook: listen(hook) for hook in on_clients if getattr(cls, hook) is not getattr(Component, hook)}
    values = {field.name: getattr(component, field.name) for field in dataclasses.fields(component)}
    return type(cls.__name__, (cls,), hooks)(**values)


def unsent(stack, cell):
    """Return the hooks, by component, that ask for something of a server which sends nothing."""
    found = {component.name: set() for component in stack}
    listeners = [listening(component, found[component.name]) for component in stack]
    score_stages(trained(dataclasses.replace(cell, algorithm=listeners[0], addons=tuple(listeners[1:]))))
    senders = [
        component.name for hook in ("broadcast", "message") for component in compose(stack[0], stack[1:]).using(hook)
    ]
    return {name: hooks for name, hooks in found.items() if hooks and name not in senders}


@every_stack
def test_what_hooks_on_clients_ask_of_the_server_is_sent(stack):
    forgotten = unsent(stack, cell_of(stack))
    assert forgotten == {}, "these ask for `server` on a client, but the component has no `broadcast` that sends it"


def test_a_forgotten_broadcast_is_noticed_behind_a_guard():
    class Forgetful(FedAvg):
        def init(self, params, shared, buffers):
            return dict(shared), {}

        def penalty(self, step):
            near = [(w - step.server[path]).square().sum() for path, w in step.params.items() if path in step.server]
            return sum(near, start=torch.zeros(()))

    assert unsent((Forgetful(),), toy_cell(Forgetful(), protocol=SHORT)) == {"fedavg": {"penalty"}}


def test_the_watch_notices_a_hook_that_changes_its_input():
    class Careless(FedAvg):
        def grads(self, grads, step):
            next(iter(grads.values())).mul_(2)
            return grads

    with pytest.raises(AssertionError, match=r"fedavg\.grads changed an input"):
        trained(toy_cell(watched(Careless(), set())))


def test_the_watch_notices_a_hook_that_draws_a_global_random_number():
    class Noisy(FedAvg):
        def server(self, delta, agg):
            return {path: leaf + torch.rand_like(leaf) for path, leaf in delta.items()}, {}

    with pytest.raises(AssertionError, match=r"fedavg\.server drew a global"):
        trained(toy_cell(watched(Noisy(), set())))


@every_stack
def test_batches_of_one_image_train(stack, tmp_path):
    cell = cell_of(stack, participation=0.5, protocol={"rounds": 1, "batch_size": 1})
    record = run_cell(cell, how(tmp_path))
    assert record["status"] == "done", record["reason"]


@every_stack
def test_training_does_not_touch_the_global_generators(stack, tmp_path):
    before = global_randomness()
    run_cell(cell_of(stack, protocol={"rounds": 1}), how(tmp_path))
    assert global_randomness() == before


@every_stack
def test_another_seed_gives_other_numbers(stack):
    one = plain(stack)
    assert weights(trained(dataclasses.replace(one.run.cell, seed=1))) != one.weights, "all seeds give the same model"
