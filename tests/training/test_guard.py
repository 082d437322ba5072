"""A component with `privacy` stands between clients and server: last, first, and alone."""

import pytest

from fedspan.benchmark.component import Component
from fedspan.benchmark.errors import Incompatible
from fedspan.benchmark.method import compose
from fedspan.benchmark.running.compat import why_not
from fedspan.benchmark.training.scoring import score_stages
from fedspan.benchmark.tree import scale
from fedspan.methods.algorithms.fedavg import FedAvg
from tests.helpers import start, toy_cell, trained
from tests.methods.by_hand import agree, numbers
from tests.toys import Guard, LocalNorm, Median, Messages, NormNet, Rounded, Scaffold, ServerMomentum, Sphere, toy

DOUBLE = {"precision": "float64", "rounds": 1}


def noting(called, name, **more):
    """Return a component that notes when its hooks are called, and makes everything ten times as large."""

    def end(self, delta, local):
        called.append((name, "client_end"))
        return scale(delta, 10.0), {}, dict(local.client)

    def server(self, delta, agg):
        called.append((name, "server"))
        return scale(delta, 10.0), dict(agg.server)

    return toy("addon", name)(type(name, (Component,), {"client_end": end, "server": server, **more}))()


def test_it_is_the_last_at_clients_and_the_first_at_the_server_wherever_it_stands():
    for before in (True, False):
        called = []
        guard = noting(called, "guard", privacy=lambda self, setting: (1.0, 1e-5))
        others = noting(called, "a"), noting(called, "b")
        start(toy_cell(FedAvg(), *((guard, *others) if before else (*others, guard)), protocol=DOUBLE)).advance()
        assert called[:3] == [(name, "client_end") for name in ("a", "b", "guard")]
        assert called[-3:] == [(name, "server") for name in ("guard", "a", "b")]


@pytest.mark.parametrize(
    ("stack", "parts", "why"),
    [
        ((FedAvg(), Sphere(), Guard()), {}, "'toy_sphere' sends statistics of features"),
        ((Median(), Guard()), {}, "'toy_median' looks at single clients' updates"),
        ((Messages(), Guard()), {}, "'toy_messages' looks at single clients' updates"),
        ((Scaffold(), Guard()), {}, "'toy_scaffold' uploads more"),
        ((FedAvg(), Guard()), {"model": NormNet()}, "BatchNorm's statistics would too; use a model without"),
    ],
)
def test_whatever_else_would_leave_a_client_is_refused_by_name(stack, parts, why):
    said = "'toy_guard' allows only updates to leave a client, but "
    with pytest.raises(Incompatible, match=said + why):
        start(toy_cell(*stack, **parts)).advance()


def test_what_a_client_uploads_is_found_before_anything_trains():
    cell = toy_cell(Scaffold(), model=NormNet())
    data = start(cell).cell.dataset.prepare(None)
    assert why_not(toy_cell(Scaffold()), data) is None
    with pytest.raises(Incompatible, match="uploads more") as said:
        start(toy_cell(Scaffold(), Guard())).advance()
    assert why_not(toy_cell(Scaffold(), Guard()), data) == str(said.value)


def test_what_stays_with_its_client_may_be_there():
    start(toy_cell(LocalNorm(), Guard(), Rounded(), model=NormNet())).advance()


def test_only_one_component_answers_for_privacy():
    other = toy("addon", "another")(type("Another", (Guard,), {}))()
    with pytest.raises(Incompatible, match="'toy_guard' and 'another' both replace 'privacy'"):
        compose(FedAvg(), [Guard(), other])


def test_a_round_without_participants_looks_as_any_other():
    """The noise comes then too; without it the model would tell that nobody was there."""
    seen = []

    def server(self, delta, agg):
        seen.append((agg.round, agg.participants, {path: leaf.clone() for path, leaf in delta.items()}))
        return {path: leaf + 1 for path, leaf in delta.items()}, {}

    guard = toy("addon", "guard")(type("G", (Component,), {"server": server, "privacy": lambda *_: (1.0, 1e-5)}))()
    protocol = DOUBLE | {"rounds": 12, "sampling": "poisson"}
    run = start(toy_cell(ServerMomentum(), guard, participation=0.1, protocol=protocol))
    while not run.finished:
        before, here = numbers(run.state.params), run.participants()
        run.advance()
        round, count, delta = seen[-1]
        assert (round, count) == (run.state.round - 1, len(here))
        assert list(delta) == list(run.state.params), "hooks draw leaf by leaf"
        assert any(leaf.any() for leaf in delta.values()) == bool(here)
        if not here and round == 0:
            agree(run.state.params, {path: leaf + 1 for path, leaf in before.items()})
    assert any(count == 0 for _, count, _ in seen)


def test_the_server_knows_how_many_clients_a_round_has_on_average():
    seen = []

    def server(self, delta, agg):
        seen.append((agg.participants, agg.expected))
        return delta, {}

    probe = toy("addon", "probe")(type("P", (Component,), {"server": server}))()
    for sampling, expected in (("fixed", 2), ("poisson", 1.5)):
        run = start(toy_cell(FedAvg(), probe, participation=0.25, protocol={"rounds": 6, "sampling": sampling}))
        while not run.finished:
            run.advance()
        counts, expectations = zip(*seen, strict=True)
        assert set(expectations) == {expected}
        assert (len(set(counts)) > 1) == (sampling == "poisson")
        seen.clear()


def test_epsilon_and_delta_are_scores():
    run = trained(toy_cell(FedAvg(), Guard()))
    assert score_stages(run)["privacy"] == {"epsilon": run.cell.protocol.rounds / 10, "delta": 1e-5}
    assert "privacy" not in score_stages(trained(toy_cell()))
    trial = trained(toy_cell(FedAvg(), Guard(), protocol={"validation": 0.3}))
    assert score_stages(trial).keys() == {"validation", "privacy"}
