"""State carried between rounds: global weights, server trees and per-client rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from fedspan.benchmark import rng
from fedspan.benchmark.component import HOOKS, acts_in
from fedspan.benchmark.errors import CorruptFile, Incompatible
from fedspan.benchmark.method import Method, States
from fedspan.benchmark.net import Net, buffers_of, owners, parameters_of
from fedspan.benchmark.tree import Tree, clone, digest, to_device

DEPTH = {"params": 1, "buffers": 1, "server": 2, "sent": 2, "own": 2, "client": 3}  # words before a path in a flat name


@dataclass(frozen=True)
class Paths:
    """Roles of weights and buffers, decided once from the method's predicates.

    They hold after a warm-up of `warm_rounds`, in which all trainable weights and all buffers travel (`at`).
    """

    trainable: frozenset[str]
    shared: frozenset[str]  # weights that travel: shared and trainable
    own: frozenset[str]  # weights and buffers that stay with their client
    shared_buffers: frozenset[str]
    travelling: bool  # whether any weight is shared, trained or not
    warm_rounds: int = 0
    has_buffers: bool = False

    @classmethod
    def of(cls, net: Net, method: Method, rounds: int = 0) -> Paths:
        """Return the paths of `net`, which trains for `rounds`, from the predicates of every component."""
        owner: dict[str, nn.Module] = owners(net)
        weights, buffers = parameters_of(net), buffers_of(net)
        trainable = {path for path in weights if method.trainable(path)}
        together = {path for path in (*weights, *buffers) if method.shared(path, owner[path])}
        return cls(
            trainable=frozenset(trainable),
            shared=frozenset(together & trainable),
            own=frozenset({*weights, *buffers} - together),
            shared_buffers=frozenset(together & set(buffers)),
            travelling=bool(together & set(weights)),
            warm_rounds=int(method.warm_up * rounds + 1e-9),  # 0.29 of 100 is 28.999999999999996
            has_buffers=bool(buffers),
        )

    def at(self, round: int, net: Net) -> Paths:
        """Return the roles of the weights and buffers of `net` in a round, counted from 0."""
        if round >= self.warm_rounds:
            return self
        buffers = frozenset(buffers_of(net))
        return replace(self, shared=self.trainable, own=frozenset(), shared_buffers=buffers, travelling=True)

    def check(self, method: Method, epochs: int) -> None:
        """Raise `Incompatible`, naming the components, if these roles do not fit together."""

        def names(hook: str) -> str:
            return " and ".join(f"'{component.name}'" for component in method.using(hook))

        if self.own and method.calibrator:
            raise Incompatible(
                f"'{method.calibrator.name}' calibrates one global model, {names('shared')} leaves weights with clients"
            )
        if not self.trainable:
            raise Incompatible(f"{names('trainable')} freezes every weight")
        if method.guard and (self.shared_buffers or (self.warm_rounds and self.has_buffers)):
            raise Incompatible(
                f"'{method.guard.name}' allows only updates to leave a client, but BatchNorm's statistics would too; "
                "use a model without, or algorithm=fedbn"
            )
        averaging = " and ".join(f"'{component.name}'" for component in method.components if component.every_round)
        if method.centraliser and (names_of := names("wire") or names("privacy")):
            raise Incompatible(f"{names_of} works on updates, and '{method.centraliser.name}' sends none")
        if not self.shared and (names_of := names("wire") or names("privacy") or averaging):
            raise Incompatible(f"{names_of} works on updates, and {names('shared')} lets none travel")
        if self.travelling and not self.shared:
            raise Incompatible(f"{names('trainable')} freezes all that {names('shared')} shares")
        for _, moving in method.phases(epochs):
            if not any(moving(path) for path in self.trainable):
                frozen = f"{names('trainable')} freezes all" if names("trainable") else "the model has nothing"
                raise Incompatible(f"{frozen} that {names('phases')} trains in a phase")


def check_freezing(net: Net, method: Method) -> None:
    """Raise `Incompatible` for a component that only freezes weights which another component freezes too."""
    for component in method.using("trainable"):
        if any(acts_in(component, hook) for hook in HOOKS if hook != "trainable"):
            continue
        for other in method.using("trainable"):
            left = filter(other.trainable, parameters_of(net))
            if other is not component and all(component.trainable(path) for path in left):
                raise Incompatible(
                    f"'{component.name}' does nothing beside '{other.name}', which freezes the same weights"
                )


@dataclass(frozen=True)
class Row:
    """One client's memory: its own weights and buffers, and each component's tree."""

    own: Tree
    states: States

    @property
    def empty(self) -> bool:
        """Whether there is nothing to store."""
        return not self.own and not any(self.states.values())


@dataclass
class State:
    """Everything that the next round depends on.

    `rows` holds only clients that have trained. The others have `first_row`, or the result of `draw_row` if clients
    are initialised individually. `lasting` names the components whose trees are also needed after training. `sent`
    holds the weights that each client sent last, if the server sends messages to single clients; a worker gets the
    `messages` themselves, for the clients that it trains.
    """

    round: int
    params: Tree
    buffers: Tree
    server: States
    first_row: Row
    rows: dict[int, Row] = field(default_factory=dict)
    draw_row: Callable[[int], Row] | None = None
    lasting: frozenset[str] = frozenset()
    sent: dict[int, Tree] = field(default_factory=dict)
    messages: Mapping[int, States] = field(default_factory=dict)

    @classmethod
    def initial(cls, net: Net, method: Method, paths: Paths, seed: int = 0) -> State:
        """Return the state before the first round; components draw from `seed`."""
        params, buffers = clone(parameters_of(net)), clone(buffers_of(net))
        shared = {path: leaf for path, leaf in params.items() if path in paths.shared}
        own = {path: leaf for path, leaf in (params | buffers).items() if path in paths.own}

        def begin(*client: int) -> tuple[States, States]:
            with rng.global_rng(seed, "state", *client):
                return method.init(params, shared, buffers)

        server, states = begin()
        draw_row = (lambda client: Row({}, begin(client)[1])) if method.init_per_client else None
        return cls(
            round=0,
            params=params,
            buffers=buffers,
            server=server,
            first_row=Row(own, states),
            draw_row=draw_row,
            lasting=method.lasting,
        )

    def row(self, client: int) -> Row:
        """Return a client's memory, with the weights of the first row if it has none of its own yet."""
        if client in self.rows:
            row = self.rows[client]
        elif self.draw_row is not None:
            row = self.draw_row(client)
        else:
            return self.first_row
        return replace(row, own=row.own or self.first_row.own)

    def rows_of(self, *clients: int) -> dict[int, Row]:
        """Return the existing rows of some clients, for a worker."""
        return {client: self.rows[client] for client in clients if client in self.rows}

    def holding(self, rows: dict[int, Row], messages: Mapping[int, States] | None = None) -> State:
        """Return the same state with only these rows, and the server's messages to single clients."""
        return replace(self, rows=rows, messages=messages or {})

    def refresh_first_row(self) -> None:
        """Set the own weights of new clients to the global ones, which a warm-up changes."""
        own = {path: leaf for path, leaf in (self.params | self.buffers).items() if path in self.first_row.own}
        self.first_row = replace(self.first_row, own=own)

    def remember(self, client: int, row: Row) -> None:
        """Store a client's row in host memory, unless it is empty."""
        if not row.empty:
            states = {name: to_device(tree, "cpu") for name, tree in row.states.items()}
            self.rows[client] = Row(to_device(row.own, "cpu"), states)

    def models_only(self) -> State:
        """Return only the models, without component trees that are needed only by further rounds."""

        def lasting(states: States) -> States:
            return {name: tree if name in self.lasting else {} for name, tree in states.items()}

        rows = {client: Row(row.own, lasting(row.states)) for client, row in self.rows.items()}
        return State(
            round=self.round,
            params=self.params,
            buffers=self.buffers,
            server=lasting(self.server),
            first_row=Row(self.first_row.own, lasting(self.first_row.states)),
            rows={client: row for client, row in rows.items() if not row.empty},
            draw_row=self.draw_row if self.lasting else None,
            lasting=self.lasting,
        )

    def digest(self) -> str:
        """Return a sha256 of the models: global weights and buffers, clients' own ones, and lasting component trees."""
        return digest(self.models_only().pack())

    def pack(self) -> Tree:
        """Return all tensors under flat names, for a checkpoint."""
        flat: Tree = {}
        flat |= {f"params/{path}": leaf for path, leaf in self.params.items()}
        flat |= {f"buffers/{path}": leaf for path, leaf in self.buffers.items()}
        for name, tree in self.server.items():
            flat |= {f"server/{name}/{path}": leaf for path, leaf in tree.items()}
        for client, tree in self.sent.items():
            flat |= {f"sent/{client}/{path}": leaf for path, leaf in tree.items()}
        for client, row in self.rows.items():
            flat |= {f"own/{client}/{path}": leaf for path, leaf in row.own.items()}
            for name, tree in row.states.items():
                flat |= {f"client/{client}/{name}/{path}": leaf for path, leaf in tree.items()}
        return flat

    def unpack(self, flat: Tree, round: int) -> None:
        """Restore the result of `pack` from the same cell; raise `CorruptFile` if names or shapes differ.

        Components create their trees in `init`; names and shapes stay the same from then on. `flat` is emptied in the
        process, because it may fill half the memory.
        """
        trees, device = _by_section(flat), next(iter(self.params.values())).device

        def section(*where: str) -> Tree:
            return trees.pop(where, {})

        params, buffers = to_device(section("params"), device), to_device(section("buffers"), device)
        server = {name: to_device(section("server", name), device) for name in self.server}
        senders = sorted(int(where[1]) for where in trees if where[0] == "sent")
        sent = {client: to_device(section("sent", str(client)), device) for client in senders}
        clients = {int(where[1]) for where in trees if where[0] in ("own", "client")}
        rows = {
            client: Row(
                section("own", str(client)),
                {name: section("client", str(client), name) for name in self.first_row.states},
            )
            for client in sorted(clients)
        }
        first, model = self.first_row, self.params | self.buffers
        pairs = [
            (self.params, params),
            (self.buffers, buffers),
            *((self.server[name], server[name]) for name in server),
            *(({path: model[path] for path in tree if path in model}, tree) for tree in sent.values()),
        ]
        for row in rows.values():
            pairs += [
                (first.own, row.own or first.own),
                *((first.states[name], row.states[name]) for name in row.states),
            ]
        for mine, other in pairs:
            _lay_out_as(mine, other)
        self.round, self.params, self.buffers, self.server = round, params, buffers, server
        self.rows, self.sent = rows, sent
        self.refresh_first_row()


def _by_section(flat: Tree) -> dict[tuple[str, ...], Tree]:
    """Return the trees of a checkpoint by the words before their paths, emptying `flat`."""
    trees: dict[tuple[str, ...], Tree] = {}
    for name in list(flat):
        *where, path = name.split("/", DEPTH.get(name.split("/")[0], 0))
        trees.setdefault(tuple(where), {})[path] = flat.pop(name)
    if () in trees:
        raise CorruptFile(f"it holds the unknown entry '{next(iter(trees[()]))}'")
    return trees


def _lay_out_as(mine: Tree, other: Tree) -> None:
    """Give the leaves of `other` the memory layout of `mine`; raise `CorruptFile` if names or shapes differ.

    The rounding of sums over a tensor depends on its layout, which a file does not store. The layout changes within the
    same memory, because reallocating the rows of many clients would fragment it.
    """
    if {k: v.shape for k, v in mine.items()} != {k: v.shape for k, v in other.items()}:
        raise CorruptFile("it belongs to another model or method")
    for k, leaf in mine.items():
        strides = torch.empty_like(leaf, device="meta").stride()
        if strides != other[k].stride():
            other[k] = other[k].as_strided(leaf.shape, strides).copy_(other[k].clone())
