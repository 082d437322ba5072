import dataclasses
from typing import Annotated, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.fields import from_values
from fedspan.benchmark.search import (
    Fixed,
    SettingDescription,
    choice,
    describe_settings,
    fields_without_space,
    fixed,
    linear,
    log,
    spaces_of,
    typed,
)
from tests.toys import toy

parts = st.floats(0, 1, exclude_max=True)
positive = st.floats(1e-9, 1e9)


@given(st.sampled_from([log, linear]), positive, st.floats(1.1, 1e6), parts)
def test_a_value_lies_in_its_range_and_is_short(scale, low, ratio, u):
    space = scale(low, low * ratio)
    value = space.at(u)
    assert low <= value <= low * ratio
    assert value in (low, low * ratio) or value == float(f"{value:.3g}")


@given(parts, parts)
def test_ranges_are_searched_in_order_each_on_its_scale(u, v):
    for space in (log(1e-4, 1.0), linear(-1.0, 1.0), typed(log(1, 64), int)):
        assert (space.at(u) <= space.at(v)) or u > v
    assert log(1e-4, 1.0).at(0.5) == 0.01
    assert linear(-1.0, 1.0).at(0.75) == 0.5


@given(st.lists(st.integers(), min_size=1, max_size=9, unique=True), parts)
def test_every_value_of_a_list_has_an_equal_part(values, u):
    assert choice(*values).at(u) == values[int(u * len(values))]


@given(st.integers(1, 50), st.integers(1, 50), st.sampled_from([log, linear]))
def test_a_range_of_whole_numbers_reaches_all_of_them_and_nothing_else(low, more, scale):
    space = typed(scale(low, low + more), int)
    assert {space.at(k / 8192) for k in range(8192)} == set(space.every()) == set(range(low, low + more + 1))
    assert space.size == more + 1
    assert all(type(value) is int for value in space.every())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: choice(), r"choice\(\) is empty"),
        (lambda: choice(1, 2, 1), "names a value twice"),
        (lambda: log(1.0, 0.1), "is empty: the first end must be below the second"),
        (lambda: linear(1.0, 1.0), "is empty"),
        (lambda: log(0.0, 1.0), "the ends must be positive; use linear or choice for 0"),
        (lambda: linear(0.0, float("nan")), "must be finite numbers"),
        (lambda: log("a", 1.0), "must be finite numbers"),
        (lambda: linear(False, True), "must be finite numbers"),
        (lambda: fixed(" "), "needs a reason"),
        (lambda: typed(linear(0.5, 2), int), "must be whole"),
    ],
)
def test_a_space_without_meaning_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@toy("algorithm", "spaced")
class Spaced:
    """Who 2020."""

    mu: Annotated[float, log(1e-3, 1.0, source="Who 2020")] = 0.1
    width: Annotated[int, linear(2, 4)] = 3
    steps: Annotated[int, fixed("it sets the compute")] = 1
    rates: tuple[float, ...] = (0.1,)
    name_of: str = ""
    quiet: bool = False
    half: float | None = None


def test_spaces_are_found_by_field_and_inherited():
    class Child(Spaced):
        mu: Annotated[float, choice(1.0)] = 1.0

    assert {name: str(space) for name, space in spaces_of(Spaced).items()} == {
        "mu": "log 0.001 to 1.0",
        "width": "linear 2 to 4",
        "steps": "not tuned",
    }
    assert spaces_of(Spaced)["width"].whole
    assert isinstance(spaces_of(Spaced)["steps"], Fixed)
    assert str(spaces_of(Child)["mu"]) == "{1.0}"
    assert str(spaces_of(Child)["width"]) == "linear 2 to 4"


def test_numeric_fields_without_a_word_are_named():
    assert fields_without_space(Spaced) == ["rates", "half"]


def test_a_field_with_two_spaces_is_refused():
    class Twice:
        mu: Annotated[float, choice(1.0), fixed("no")] = 1.0

    with pytest.raises(UserError, match=r"Twice\.mu \(.*test_search\.py, line \d+\) has 2 search spaces; keep one"):
        spaces_of(Twice)


def test_a_range_without_its_scale_is_refused():
    class Bare:
        mu: Annotated[float, (0.1, 1.0)] = 0.1

    with pytest.raises(UserError, match=r"Bare\.mu \(.*\) is annotated with \(0\.1, 1\.0\); a space is written choice"):
        spaces_of(Bare)


def test_a_range_with_broken_ends_on_whole_numbers_names_its_field():
    class Broken:
        width: Annotated[int, linear(0.5, 2)] = 1

    with pytest.raises(UserError, match=r"Broken\.width \(.*\): .* must be whole"):
        spaces_of(Broken)


def test_values_of_annotated_fields_are_checked_as_before():
    assert from_values(Spaced, {"mu": 1, "width": 3.0}, "algorithm") == Spaced(mu=1.0, width=3)
    with pytest.raises(UserError, match=r"algorithm\.width must be a whole number, got 2\.5"):
        from_values(Spaced, {"width": 2.5}, "algorithm")


@pytest.mark.parametrize(
    ("space", "value", "end"),
    [
        (log(0.005, 0.5), 0.0051, "low"), (log(0.005, 0.5), 0.009, ""), (log(0.005, 0.5), 0.3, ""),
        (log(0.005, 0.5), 0.45, "high"), (linear(0.0, 1.0), 0.05, "low"), (linear(0.0, 1.0), 0.5, ""),
        (log(1e-4, 1e-1), 0.0, "low"), (linear(0.0, 1.0), 3.0, "high"),
        (choice(0.3, 0.1, 0.2), 0.1, "low"), (choice(0.3, 0.1, 0.2), 0.2, ""), (choice(0.3, 0.1, 0.2), 0.3, "high"),
        (choice(0.0, 0.1, 0.2), 0.0, ""), (choice(0.1, 0.2), 0.1, ""), (choice("a", "b", "c"), "a", ""),
        (choice(*range(1, 13)), 1, "low"), (choice(*range(1, 13)), 2, ""), (choice(*range(1, 13)), 11, ""),
        (choice(*range(1, 13)), 12, "high"), (choice(0.3, 0.1, 0.2), 0.05, "low"),
    ],
)  # fmt: skip
def test_a_value_at_an_end_of_its_range_or_list_is_said_to_be_there(space, value, end):
    assert space.end(value) == end


@given(positive, st.floats(1.01, 1e6), parts, parts, st.sampled_from([log, linear]))
def test_places_go_from_one_end_to_the_other_in_the_order_of_draws(low, times, u, v, scale):
    space = scale(low, low * times)
    first, second = (space.place(space.at(draw)) for draw in sorted((u, v)))
    assert (space.place(low), space.place(low * times)) == (0, 1)
    assert 0 <= first <= second <= 1


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=9, unique=True), st.integers(0, 99), st.floats(0, 1))
def test_numbers_of_a_list_have_places_in_their_order_whatever_the_order_of_the_list(values, beyond, between):
    space, ordered = choice(*values), sorted(values)
    assert space.values == tuple(values), "draws keep the order of the list"
    assert list(space.ordered) == ordered
    assert [space.place(float(value)) for value in ordered] == pytest.approx(np.linspace(0, 1, len(values)))
    assert (space.place(ordered[0] - beyond), space.place(ordered[-1] + beyond)) == (0, 1)
    inside = ordered[0] + between * (ordered[1] - ordered[0])
    assert 0 <= space.place(inside) <= space.place(ordered[1]) + 1e-9


@pytest.mark.parametrize(
    ("space", "value", "place"),
    [
        (choice("b", "a", "c"), "b", 0), (choice("b", "a", "c"), "a", 0.5), (choice("b", "a"), "d", 0),
        (choice(False, True), True, 1), (choice(1.0), 5.0, 0), (choice(None, 0.1), 0.1, 1), (choice(1, 2), None, 0),
    ],
)  # fmt: skip
def test_what_are_no_numbers_keep_the_order_of_their_list(space, value, place):
    assert space.place(value) == place


@pytest.mark.parametrize("scale", [log, linear])
def test_half_way_through_the_draws_is_half_way_through_the_range(scale):
    space = scale(0.001, 10.0)
    assert space.place(space.at(0.5)) == pytest.approx(0.5, abs=0.001)


def test_settings_are_described_with_their_values_defaults_and_spaces():
    @dataclasses.dataclass(frozen=True)
    class Some:
        rate: Annotated[float | None, log(0.1, 1.0, source="ours")] = None
        draws: Annotated[int, fixed("sets the compute")] = 3
        losses: tuple[Literal["ce", "mse"], ...] = ("ce",)
        crop: tuple[int, float] = (4, 0.5)

    assert describe_settings(Some, "algorithm") == [
        SettingDescription("algorithm.rate", None, "a number, or null", "log 0.1 to 1.0", "ours"),
        SettingDescription("algorithm.draws", 3, "a whole number", "", "sets the compute"),
        SettingDescription("algorithm.losses", ("ce",), "a list, each ce or mse", "", ""),
        SettingDescription("algorithm.crop", (4, 0.5), "a list of 2: a whole number, a number", "", ""),
    ]
