"""A method: one base algorithm and its add-ons, acting as one component in every hook."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from fedspan.benchmark.component import Aggregate, Component, Local, Phases, Setting, Step, Upload, Wire, acts_in
from fedspan.benchmark.contract import check_attached, check_message, check_returned, check_weights
from fedspan.benchmark.download import Download
from fedspan.benchmark.errors import HookError, Incompatible, did_you_mean
from fedspan.benchmark.net import Net
from fedspan.benchmark.registry import Plugin, plugins
from fedspan.benchmark.returned import repeatable, unchanged
from fedspan.benchmark.tree import Tree

# hooks that at most one component may replace
EXCLUSIVE = ("loss", "phases", "weights", "aggregate", "calibrate", "personalise", "own", "privacy")
SINGLE = ("aggregate", "message")  # hooks that receive individual clients' updates
# hooks that a privacy guarantee forbids, and what each does
REVEALING = {"stats": "sends statistics of features"} | dict.fromkeys(SINGLE, "looks at single clients' updates")

SEEDED = ("net", "init")  # hooks that may draw from torch's global generator, which the engine seeds for them
OF_ROUNDS = ("broadcast", "message", "client_start", "client_end", "weights", "aggregate", "server")

States = dict[str, Tree]  # component name -> tree


@dataclass(frozen=True)
class Method:
    """One base algorithm and its add-ons, acting as one component; built by `compose`."""

    components: tuple[Component, ...]

    def using(self, hook: str) -> tuple[Component, ...]:
        """Return the components that override `hook` and are not idle in it, base first."""
        if hook not in self._using:
            self._using[hook] = tuple(component for component in self.components if acts_in(component, hook))
        return self._using[hook]

    def only(self, hook: str) -> Component | None:
        """Return the component that replaces one of the hooks in `EXCLUSIVE`, if any."""
        return next(iter(self.using(hook)), None)

    def in_charge(self, hook: str) -> Component:
        """Return the component that replaces one of the hooks in `EXCLUSIVE`, or else the base algorithm."""
        return next(iter(self.using(hook)), self.components[0])

    @cached_property
    def _using(self) -> dict[str, tuple[Component, ...]]:
        return {}

    @cached_property
    def _asked(self) -> set[tuple[str, str]]:
        return set()

    def ask(self, component: Component, hook: str, *inputs: Any) -> Any:
        """Call a hook and return its result.

        Every result of a hook in `OF_ROUNDS` is checked; of other hooks only the first, so that steps cost nothing
        extra.
        """
        call, known = getattr(component, hook), (component.name, hook) in self._asked
        if known:
            returned = call(*inputs)
        else:
            with unchanged(component, hook, inputs), self._drawn_from_its_own(component, hook):
                returned = call(*inputs)
            self._asked.add((component.name, hook))
        if not known or hook in OF_ROUNDS:
            check_returned(component, hook, inputs, returned)
        return returned

    def _drawn_from_its_own(self, component: Component, hook: str) -> contextlib.AbstractContextManager[None]:
        if hook in SEEDED:
            return contextlib.nullcontext()
        return repeatable(component, hook, "draw from the `rng` of its view, or in `init`")

    @property
    def edits_gradients(self) -> bool:
        """Whether any component changes the gradients."""
        return bool(self.using("grads"))

    @property
    def carries(self) -> bool:
        """Whether any component's client tree changes from step to step."""
        return bool(self.using("carry"))

    @property
    def needs_sequential_steps(self) -> bool:
        """Whether local steps need more than a loss, so that the steps of several clients cannot be stacked."""
        return any(self.using(hook) for hook in ("grads", "carry", "shift", "client_start", "message"))

    @property
    def guard(self) -> Component | None:
        """The component that sits between clients and server and guarantees the clients' privacy, if any."""
        return self.only("privacy")

    @property
    def sends_messages(self) -> bool:
        """Whether the server writes to individual clients, based on what all of them sent."""
        return bool(self.using("message"))

    @property
    def sees_updates(self) -> bool:
        """Whether the server sees individual clients' updates, not only sums."""
        return any(self.using(hook) for hook in SINGLE)

    def check(self, setting: Setting) -> None:
        for component in self.components:
            component.check(setting)

    def net(self, net: Net, setting: Setting) -> Net:
        for component in self.components:
            net = self.ask(component, "net", net, setting)
        return net

    def init(self, params: Tree, shared: Tree, buffers: Tree) -> tuple[States, States]:
        server, client = {}, {}
        for component in self.components:
            server[component.name], client[component.name] = self.ask(component, "init", params, shared, buffers)
        return server, client

    @property
    def centraliser(self) -> Component | None:
        """The component under which one client trains on the images of all clients, if any."""
        return next((component for component in self.components if component.one_client), None)

    @property
    def one_client(self) -> bool:
        """Whether one client trains on the images of all clients."""
        return self.centraliser is not None

    def trainable(self, path: str) -> bool:
        return all(self.ask(component, "trainable", path) for component in self.components)

    def shared(self, path: str, module: nn.Module) -> bool:
        return all(self.ask(component, "shared", path, module) for component in self.components)

    def phases(self, epochs: int) -> Phases:
        found: Phases = self.ask(self.in_charge("phases"), "phases", epochs)
        return found

    def objective(self, step: Step, server: States, client: States) -> Tensor:
        """Return the loss plus penalties of one batch."""
        total = self.loss(step, server, client)
        for component in self.using("penalty"):
            step.server, step.client = server[component.name], client[component.name]
            total = total + self.ask(component, "penalty", step)
        return total

    def attached(self, total: Tensor) -> Tensor:
        """Return the loss plus penalties; raise `HookError` if it has no gradient in the weights."""
        check_attached(self.in_charge("loss"), total)
        return total

    def loss(self, step: Step, server: States, client: States) -> Tensor:
        """Return the loss of one batch, without penalties."""
        component = self.in_charge("loss")
        step.server, step.client = server[component.name], client[component.name]
        loss: Tensor = self.ask(component, "loss", step)
        return loss

    def penalties(self, step: Step, server: States, client: States) -> dict[str, Tensor]:
        """Return the unscaled penalties of one batch by component, each with its coefficient at 1."""
        found = {}
        for component in self.using("penalty"):
            step.server, step.client = server[component.name], client[component.name]
            one = {component.coefficient: 1.0} if component.coefficient else {}
            found[component.name] = replace(component, **one).penalty(step)  # type: ignore[type-var]
        return found

    def carry(self, grads: Tree, step: Step, server: States, client: States) -> States:
        """Return the client trees that change with this step."""
        found = {}
        for component in self.using("carry"):
            step.server, step.client = server[component.name], client[component.name]
            found[component.name] = self.ask(component, "carry", grads, step)
        return found

    def grads(self, grads: Tree, step: Step, server: States, client: States) -> Tree:
        for component in self.using("grads"):
            step.server, step.client = server[component.name], client[component.name]
            grads = self.ask(component, "grads", grads, step)
        return grads

    def shifts(self, step: Step, server: States, client: States) -> Iterator[Tree]:
        """Yield each component's addition to the weights after the optimiser step."""
        for component in self.using("shift"):
            step.server, step.client = server[component.name], client[component.name]
            yield self.ask(component, "shift", step)

    def broadcast(self, server: States) -> States:
        return {
            component.name: self.ask(component, "broadcast", server[component.name]) for component in self.components
        }

    def message(self, download: Callable[[str], Download], broadcast: States) -> States:
        """Return the trees that a client receives, by component: `broadcast` plus messages for this client alone.

        `download` builds a component's view, given its name.
        """
        found = dict(broadcast)
        for component in self.using("message"):
            tree = self.ask(component, "message", download(component.name))
            check_message(component, tree, broadcast[component.name])
            found[component.name] = broadcast[component.name] | tree
        return found

    @property
    def has_weights(self) -> bool:
        """Whether participants are weighted by anything other than their number of images."""
        return bool(self.using("weights"))

    def weights(self, counts: Tensor, samples: int) -> Tensor:
        """Return the participants' aggregation weights [m], set by at most one component."""
        component = self.in_charge("weights")
        found: Tensor = self.ask(component, "weights", counts, samples)
        check_weights(component, found)
        return found

    def client_start(self, params: Tree, local: Callable[[str], Local]) -> tuple[Tree, States]:
        """Chain `client_start` and return (weights, new client trees); `local` builds a component's view by name."""
        clients: States = {}
        for component in self.using("client_start"):
            params, clients[component.name] = self.ask(component, "client_start", params, local(component.name))
        return params, clients

    def wire(self, size: Wire, delta: Tree, local: Callable[[str], Local]) -> Wire:
        """Chain `wire`; `local` builds a component's view by name."""
        for component in self.using("wire"):
            size = self.ask(component, "wire", size, delta, local(component.name))
        return size

    def aggregate(self, updates: Mapping[int, Tree], agg: Callable[[str], Aggregate]) -> Tree:
        """Return the delta that the method's one `aggregate` hook computes from individual updates."""
        component = self.using("aggregate")[0]
        delta: Tree = self.ask(component, "aggregate", updates, agg(component.name))
        return delta

    def client_end(self, delta: Tree, local: Callable[[str], Local]) -> tuple[Tree, dict[str, Upload], States]:
        """Chain `client_end`, the guard last; `local` builds a component's view by name."""
        uploads: dict[str, Upload] = {}
        clients: States = {}
        for component in sorted(self.components, key=lambda one: one is self.guard):
            name = component.name
            delta, uploads[name], clients[name] = self.ask(component, "client_end", delta, local(name))
        if self.guard and (senders := [name for name, upload in uploads.items() if upload]):
            raise Incompatible(_leak(self.guard, senders[0], "uploads more"))
        return delta, uploads, clients

    def server(self, delta: Tree, agg: Callable[[str], Aggregate], empty: bool = False) -> tuple[Tree, States]:
        """Chain `server`, the guard first; `agg` builds a component's view by name.

        In an `empty` round, in which nothing arrives, only components with `every_round` are called; with a guard,
        which hides that the round is empty, all are.
        """
        servers = {}
        for component in sorted(self.components, key=lambda one: one is not self.guard):
            view = agg(component.name)
            if empty and not self.guard and not component.every_round:
                servers[component.name] = dict(view.server)
            else:
                delta, servers[component.name] = self.ask(component, "server", delta, view)
        return delta, servers

    @property
    def every_round(self) -> bool:
        """Whether the server also acts in rounds in which nothing arrives."""
        return self.guard is not None or any(component.every_round for component in self.components)

    @property
    def moves_statistics(self) -> bool:
        """Whether deltas include changes of the shared running statistics."""
        return any(component.moves_statistics for component in self.components)

    @property
    def warm_up(self) -> float:
        """The share of the rounds, from the first on, in which every weight is communicated."""
        return max(component.warm_up for component in self.components)

    @property
    def init_per_client(self) -> bool:
        """Whether each client starts with a tree of its own."""
        return any(component.init_per_client for component in self.components)

    @property
    def calibrator(self) -> Component | None:
        """The component that adds the `calibrated` stage, if any."""
        return self.only("calibrate")

    @property
    def calibrates_every(self) -> int:
        """Interval in rounds at which training continues from calibrated weights; 0: never."""
        return self.calibrator.calibrates_every if self.calibrator else 0

    @property
    def personaliser(self) -> Component | None:
        """The component that derives the `personalised` stage from a client's features, if any."""
        return self.only("personalise")

    @property
    def own_component(self) -> Component | None:
        """The component that derives the `personalised` stage from a client's tree or images, if any."""
        return self.only("own")

    @property
    def personalises(self) -> bool:
        """Whether the method has a `personalised` stage."""
        return self.own_component is not None or self.personaliser is not None

    @property
    def lasting(self) -> frozenset[str]:
        """Names of components whose trees `own` needs: its own component, and that of the loss it may evaluate."""
        return frozenset({self.own_component.name, self.in_charge("loss").name}) if self.own_component else frozenset()


def compose(base: Component, addons: Sequence[Component] = ()) -> Method:
    """Return the method of `base` with `addons` in order; raise `Incompatible` naming any conflict."""
    method = Method((base, *addons))
    names = [component.name for component in method.components]
    for name in names:
        if names.count(name) > 1:
            raise Incompatible(f"'{name}' appears twice in {' + '.join(names)}")
    for component in method.components:
        _check_excluded(component, names)
    for hook in EXCLUSIVE:
        claimants = [component.name for component in method.using(hook)]
        if len(claimants) > 1:
            raise Incompatible(f"{' and '.join(map(repr, claimants))} both replace '{hook}'; keep one of them")
    if method.guard:
        _check_guarded(method, method.guard)
    return method


def _check_excluded(component: Component, names: Sequence[str]) -> None:
    """Raise `Incompatible` if a component excludes one of `names`, `HookError` if it excludes what does not exist."""
    for other in component.excludes:
        if other not in (known := (*plugins("algorithm"), *plugins("addon"))):
            near = did_you_mean(other, known)
            raise HookError(f"{component.kind} '{component.name}' excludes '{other}', which is not a component{near}")
        if other in names:
            why = f": {component.excludes[other]}" if isinstance(component.excludes, Mapping) else ""
            raise Incompatible(f"'{component.name}' does not work beside '{other}'{why}")


def _check_guarded(method: Method, guard: Component) -> None:
    """Raise `Incompatible` if a component lets more than updates leave a client that `guard` protects."""
    found = [(other, does) for hook, does in REVEALING.items() for other in method.using(hook)]
    found += [(other, "pools the features of all clients") for other in method.components if other.pools]
    for other, does in found:
        raise Incompatible(_leak(guard, other.name, does))


def _leak(guard: Component, other: str, does: str) -> str:
    return f"'{guard.name}' allows only updates to leave a client, but '{other}' {does}"


def disclosure(cls: type[Plugin]) -> str:
    """Return what a plugin discloses to the server beyond sums, in words for lists and pages; usually nothing."""
    if not issubclass(cls, Component):
        return ""
    updates = any(getattr(cls, hook) is not getattr(Component, hook) for hook in SINGLE)
    seen = [*(["single clients' updates"] if updates else []), *([cls.server_sees] if cls.server_sees else [])]
    return f"the server sees {' and '.join(seen)}, not sums alone" if seen else ""
