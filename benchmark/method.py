"""A method: one base algorithm and its add-ons, acting as one component in every hook."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from fedspan.benchmark.component import Aggregate, Component, Local, Phases, Setting, Step, Upload, acts_in
from fedspan.benchmark.contract import check_returned
from fedspan.benchmark.errors import Incompatible
from fedspan.benchmark.net import Net
from fedspan.benchmark.tree import Tree

EXCLUSIVE = ("loss", "phases", "calibrate", "personalise")  # hooks that at most one component may replace

States = dict[str, Tree]  # component name -> tree


@dataclass(frozen=True)
class Method:
    """One base algorithm and its add-ons, acting as one; made by `compose`."""

    components: tuple[Component, ...]

    def using(self, hook: str) -> tuple[Component, ...]:
        """Return the components that override `hook`, base first."""
        return tuple(component for component in self.components if acts_in(component, hook))

    @cached_property
    def _asked(self) -> set[tuple[str, str]]:
        return set()

    def ask(self, component: Component, hook: str, *inputs: Any) -> Any:
        """Return what a hook returns; what it returns first is checked, and later calls cost nothing more."""
        returned = getattr(component, hook)(*inputs)
        if (component.name, hook) not in self._asked:
            check_returned(component, hook, inputs, returned)
            self._asked.add((component.name, hook))
        return returned

    @cached_property
    def _penalties(self) -> tuple[Component, ...]:
        return self.using("penalty")

    @cached_property
    def _loss(self) -> Component:
        return next(iter(self.using("loss")), self.components[0])

    @cached_property
    def _shifts(self) -> tuple[Component, ...]:
        return self.using("shift")

    @cached_property
    def _grads(self) -> tuple[Component, ...]:
        return self.using("grads")

    @property
    def edits_gradients(self) -> bool:
        """Whether any component wants to see the gradients."""
        return bool(self._grads)

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
    def one_client(self) -> bool:
        """Whether the images of all clients train as those of one."""
        return any(component.one_client for component in self.components)

    def trainable(self, path: str) -> bool:
        return all(self.ask(component, "trainable", path) for component in self.components)

    def shared(self, path: str, module: nn.Module) -> bool:
        return all(self.ask(component, "shared", path, module) for component in self.components)

    def phases(self, epochs: int) -> Phases:
        found: Phases = self.ask(next(iter(self.using("phases")), self.components[0]), "phases", epochs)
        return found

    def objective(self, step: Step, server: States, client: States) -> Tensor:
        """Return loss plus penalties of one batch."""

        def view(component: Component) -> Step:
            step.server, step.client = server[component.name], client[component.name]
            return step

        total: Tensor = self.ask(self._loss, "loss", view(self._loss))
        for component in self._penalties:
            total = total + self.ask(component, "penalty", view(component))
        return total

    def penalties(self, step: Step, server: States, client: States) -> dict[str, Tensor]:
        """Return the penalties of one batch by component, each without its coefficient."""
        found = {}
        for component in self._penalties:
            step.server, step.client = server[component.name], client[component.name]
            one = {component.coefficient: 1.0} if component.coefficient else {}
            found[component.name] = replace(component, **one).penalty(step)  # type: ignore[type-var]
        return found

    def grads(self, grads: Tree, step: Step, server: States, client: States) -> Tree:
        for component in self._grads:
            step.server, step.client = server[component.name], client[component.name]
            grads = self.ask(component, "grads", grads, step)
        return grads

    def shifts(self, step: Step, server: States, client: States) -> Iterator[Tree]:
        """Yield what each component adds to the weights after the optimiser's step."""
        for component in self._shifts:
            step.server, step.client = server[component.name], client[component.name]
            yield self.ask(component, "shift", step)

    def broadcast(self, server: States) -> States:
        return {
            component.name: self.ask(component, "broadcast", server[component.name]) for component in self.components
        }

    def client_end(self, delta: Tree, local: Callable[[str], Local]) -> tuple[Tree, dict[str, Upload], States]:
        """Chain `client_end`; `local` makes each component's view by its name."""
        uploads: dict[str, Upload] = {}
        clients: States = {}
        for component in self.components:
            name = component.name
            delta, uploads[name], clients[name] = self.ask(component, "client_end", delta, local(name))
        return delta, uploads, clients

    def server(self, delta: Tree, agg: Callable[[str], Aggregate]) -> tuple[Tree, States]:
        """Chain `server`; `agg` makes each component's view by its name."""
        servers = {}
        for component in self.components:
            delta, servers[component.name] = self.ask(component, "server", delta, agg(component.name))
        return delta, servers

    @property
    def moves_statistics(self) -> bool:
        """Whether deltas also hold the changes of the shared running statistics."""
        return any(component.moves_statistics for component in self.components)

    @property
    def warm_up(self) -> float:
        """The share of the rounds in which every weight travels."""
        return max(component.warm_up for component in self.components)

    @property
    def init_per_client(self) -> bool:
        """Whether clients begin with trees of their own."""
        return any(component.init_per_client for component in self.components)

    @property
    def calibrator(self) -> Component | None:
        """The component that adds the stage `calibrated`, if any."""
        return next(iter(self.using("calibrate")), None)

    @property
    def calibrates_every(self) -> int:
        """After how many rounds training goes on from calibrated weights; 0: never."""
        return self.calibrator.calibrates_every if self.calibrator else 0

    @property
    def personaliser(self) -> Component | None:
        """The component that adds the stage `personalised`, if any."""
        return next(iter(self.using("personalise")), None)


def compose(base: Component, addons: Sequence[Component] = ()) -> Method:
    """Return the method of `base` with `addons` in order; raise `Incompatible` naming what conflicts."""
    components = (base, *addons)
    names = [component.name for component in components]
    for name in names:
        if names.count(name) > 1:
            raise Incompatible(f"'{name}' appears twice in {' + '.join(names)}")
    for component in components:
        for other in component.excludes:
            if other in names:
                raise Incompatible(f"'{component.name}' does not work beside '{other}'")
    method = Method(components)
    for hook in EXCLUSIVE:
        claimants = [component.name for component in method.using(hook)]
        if len(claimants) > 1:
            raise Incompatible(f"{' and '.join(map(repr, claimants))} both replace '{hook}'; keep one of them")
    return method
