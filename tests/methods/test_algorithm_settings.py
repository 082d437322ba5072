"""Settings of algorithms outside their domain are one line that names the setting and its value."""

import pytest

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.fields import defaults_of, from_values
from fedspan.benchmark.registry import find, plugins
from fedspan.benchmark.tree import digest
from tests.helpers import toy_cell, trained

BAD = [
    ("fedavgm", {"rho": 1.0}, "algorithm.rho must lie in [0, 1), got 1.0"),
    ("fedavgm", {"rho": -0.1}, "algorithm.rho must lie in [0, 1), got -0.1"),
    ("fedopt", {"momentum": 1.0}, "algorithm.momentum must lie in [0, 1), got 1.0"),
    ("fedopt", {"lr": 0.0}, "algorithm.lr must be positive, got 0.0"),
    ("fedadam", {"beta1": 1.0}, "algorithm.beta1 must lie in [0, 1), got 1.0"),
    ("fedadam", {"beta2": 1.5}, "algorithm.beta2 must lie in [0, 1), got 1.5"),
    ("fedyogi", {"tau": 0.0}, "algorithm.tau must be positive, got 0.0"),
    ("fedyogi", {"beta2": -1.0}, "algorithm.beta2 must lie in [0, 1), got -1.0"),
    ("fedadagrad", {"lr": -1.0}, "algorithm.lr must be positive, got -1.0"),
    ("fedadagrad", {"beta2": 0.9}, "unknown field 'algorithm.beta2'; did you mean 'beta1'?"),
    ("scaffold", {"lr": 0.0}, "algorithm.lr must be positive, got 0.0"),
    ("moon", {"mu": -1.0}, "algorithm.mu must not be negative, got -1.0"),
    ("moon", {"temperature": 0.0}, "algorithm.temperature must be positive, got 0.0"),
    ("moon", {"projection": (640, 0)}, "algorithm.projection must be widths of at least 1, got (640, 0)"),
    ("fedexp", {"epsilon": -1e-3}, "algorithm.epsilon must not be negative, got -0.001"),
    ("fedrs", {"alpha": 1.1}, "algorithm.alpha must lie in [0, 1], got 1.1"),
    ("fedrs", {"alpha": -0.1}, "algorithm.alpha must lie in [0, 1], got -0.1"),
    ("fedlc", {"tau": -1.0}, "algorithm.tau must not be negative, got -1.0"),
    ("fedsam", {"rho": -0.05}, "algorithm.rho must not be negative, got -0.05"),
    ("pfedme", {"lam": 0.0}, "algorithm.lam must be positive, got 0.0"),
    ("pfedme", {"steps": 0}, "algorithm.steps must be at least 1, got 0"),
    ("pfedme", {"personal_lr": 0.0}, "algorithm.personal_lr must be positive, got 0.0"),
    ("pfedme", {"beta": 0.0}, "algorithm.beta must be positive, got 0.0"),
    ("perfedavg", {"alpha": -0.1}, "algorithm.alpha must not be negative, got -0.1"),
    ("perfedavg", {"steps": 0}, "algorithm.steps must be at least 1, got 0"),
    ("apfl", {"alpha": 1.5}, "algorithm.alpha must lie in [0, 1], got 1.5"),
    ("ditto", {"lam": -1.0}, "algorithm.lam must not be negative, got -1.0"),
    ("fedproto", {"weight": -1.0}, "algorithm.weight must not be negative, got -1.0"),
    ("feddisco", {"a": -0.5}, "algorithm.a must not be negative, got -0.5"),
    ("fedrep", {"head_epochs": 0}, "algorithm.head_epochs must be at least 1, got 0"),
    ("fedadagrad", {"beta1": 1.0}, "algorithm.beta1 must lie in [0, 1), got 1.0"),
    ("fedadagrad", {"tau": 0.0}, "algorithm.tau must be positive, got 0.0"),
    ("fedadam", {"lr": 0.0}, "algorithm.lr must be positive, got 0.0"),
    ("fedadam", {"tau": 0.0}, "algorithm.tau must be positive, got 0.0"),
    ("fedyogi", {"beta1": 1.0}, "algorithm.beta1 must lie in [0, 1), got 1.0"),
    ("fedyogi", {"lr": 0.0}, "algorithm.lr must be positive, got 0.0"),
    ("feddc", {"alpha": 0.0}, "algorithm.alpha must be positive, got 0.0"),
    ("feddyn", {"alpha": 0.0}, "algorithm.alpha must be positive, got 0.0"),
    ("fedprox", {"mu": -1.0}, "algorithm.mu must not be negative, got -1.0"),
    ("fedsmoo", {"prox": 0.0}, "algorithm.prox must be positive, got 0.0"),
    ("fedsmoo", {"rho": 0.0}, "algorithm.rho must be positive, got 0.0"),
    ("lg_fedavg", {"warm_up": 1.0}, "algorithm.warm_up must lie in [0, 1), got 1.0"),
    ("fedala", {"layers": -1}, "algorithm.layers must not be negative, got -1"),
    ("fedala", {"share": 0.0}, "algorithm.share must lie in (0, 1], got 0.0"),
    ("fedala", {"eta": 0.0}, "algorithm.eta must be positive, got 0.0"),
    ("fedala", {"threshold": 0.0}, "algorithm.threshold must be positive, got 0.0"),
    ("fedala", {"passes": 0}, "algorithm.passes must be at least 1, got 0"),
    ("fedamp", {"lam": -1.0}, "algorithm.lam must not be negative, got -1.0"),
    ("fedamp", {"alpha": 0.0}, "algorithm.alpha must be positive, got 0.0"),
    ("fedamp", {"sigma": 0.0}, "algorithm.sigma must be positive, got 0.0"),
    ("fedamp", {"self_weight": 1.1}, "algorithm.self_weight must lie in [0, 1], got 1.1"),
    ("fedntd", {"beta": -1.0}, "algorithm.beta must not be negative, got -1.0"),
    ("fedntd", {"tau": 0.0}, "algorithm.tau must be positive, got 0.0"),
    ("fedrod", {"gamma": -1.0}, "algorithm.gamma must not be negative, got -1.0"),
    ("elastic", {"tau": -1.0}, "algorithm.tau must not be negative, got -1.0"),
    ("elastic", {"mu": 1.0}, "algorithm.mu must lie in [0, 1), got 1.0"),
    ("fedrep", {"body_epochs": -1}, "algorithm.body_epochs must be 0 (protocol.local_epochs) or more, got -1"),
    ("fedspeed", {"rho": -1.0}, "algorithm.rho must not be negative, got -1.0"),
    ("fedspeed", {"alpha": 1.1}, "algorithm.alpha must lie in [0, 1], got 1.1"),
    ("fedspeed", {"prox": 0.0}, "algorithm.prox must be positive, got 0.0"),
    ("fedlc", {"tau": float("nan")}, "algorithm.tau must be a finite number, got nan"),
]


@pytest.mark.parametrize(("name", "values", "message"), BAD, ids=lambda part: str(part))
def test_a_setting_outside_its_domain_is_one_line(name, values, message):
    with pytest.raises(UserError) as error:
        from_values(find("algorithm", name), values, "algorithm")
    assert str(error.value) == message


def test_the_domain_of_each_number_is_tested():
    any_number = {("feddisco", "b")}
    tested = {(name, setting) for name, values, _ in BAD for setting in values}
    numbers = {
        (name, field)
        for name, cls in plugins("algorithm").items()
        if cls.__module__.startswith("fedspan.")
        for field, value in defaults_of(cls).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    assert numbers - tested == any_number


BORDERS = [
    ("fedavgm", {"rho": 0.999}), ("fedadam", {"beta1": 0.0, "beta2": 0.0}), ("fedexp", {"epsilon": 0.0}),
    ("fedrs", {"alpha": 0.0}), ("moon", {"projection": (1,)}), ("fedrep", {"head_epochs": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "values"), BORDERS, ids=str)
def test_settings_at_the_border_train(name, values):
    run = trained(toy_cell(from_values(find("algorithm", name), values, "algorithm")))
    assert all(leaf.isfinite().all() for leaf in run.state.params.values())


def test_no_two_algorithms_do_the_same():
    ends = {}
    for name, cls in plugins("algorithm").items():
        run = trained(toy_cell(cls(), participation=0.5))
        ends.setdefault(digest(run.state.models_only().pack()), []).append(name)
    twins = [names for names in ends.values() if len(names) > 1]
    # the plain net has no BatchNorm, and on the toy task updates agree too well to extrapolate
    assert twins == [["fedavg", "fedbn", "fedexp"]]
