"""Search spaces of all registered methods."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.fields import from_values
from fedspan.benchmark.protocol import Protocol
from fedspan.benchmark.registry import plugins
from fedspan.benchmark.search import Space, fields_without_space, spaces_of

METHODS = [cls for kind in ("algorithm", "addon") for cls in plugins(kind).values()]
OURS = [cls for cls in METHODS if cls.__module__.startswith("fedspan.")]  # others are free not to be tuned
PRINTED = Path(__file__).parents[2] / "results" / "paper" / "hyperparameters.csv"
every_method = pytest.mark.parametrize("cls", METHODS, ids=[cls.name for cls in METHODS])


@pytest.mark.parametrize("cls", OURS, ids=[cls.name for cls in OURS])
def test_every_numeric_field_has_a_space_or_a_word_why_not(cls):
    assert fields_without_space(cls) == []


@every_method
def test_every_space_names_its_source_and_lies_in_the_domain_of_its_field(cls):
    for name, space in spaces_of(cls).items():
        if isinstance(space, Space):
            assert space.source, name
            for value in space.values:
                assert getattr(from_values(cls, {name: value}, cls.kind), name) == value


def test_a_value_outside_of_the_domain_would_be_refused():
    with pytest.raises(UserError, match=r"algorithm\.mu must not be negative"):
        from_values(plugins("algorithm")["fedprox"], {"mu": -1.0}, "algorithm")


def test_equal_numbers_of_a_choice_are_one_setting():
    @dataclass
    class Chosen:
        k: Literal[1, 2] = 1

    found = from_values(Chosen, {"k": 2.0}, "algorithm")
    assert (found.k, type(found.k)) == (2, int)


def printed():
    """Yield the grids that papers print for fields of methods: kind, name, field and values."""
    with PRINTED.open() as file:
        for line in csv.DictReader(file):
            if line["name"].endswith("_grid") and "." in (line["setting"] or ""):
                setting, _, values = line["setting"].partition("=")
                owner, _, field = setting.rpartition(".")
                name = owner.removeprefix("addon.") if owner.startswith("addon.") else line["cells"].split("=")[1]
                yield "addon" if owner.startswith("addon.") else "algorithm", name, field, values


def test_the_grids_that_the_papers_print_are_the_spaces_of_their_fields():
    grids = set(printed())
    assert {(name, field) for _, name, field, _ in grids} >= {("feddecorr", "beta"), ("fedprox", "mu"), ("moon", "mu")}
    for kind, name, field, values in grids:
        assert spaces_of(plugins(kind)[name])[field].values == tuple(map(float, values.split("|")))


@pytest.mark.parametrize(("grid", "cls", "field"), [
    ("learning_rate_grid", Protocol, "lr"),
    ("ffc_l2_lambda_grid", plugins("addon")["ffc"], "ridge"),
])  # fmt: skip
def test_spherefed_s_grids_are_those_of_the_rate_and_of_the_ridge(grid, cls, field):
    with PRINTED.open() as file:
        [values] = [line["value"] for line in csv.DictReader(file) if line["name"] == grid]
    assert spaces_of(cls)[field].values == tuple(map(float, values.split("|")))
