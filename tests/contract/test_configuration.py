"""Every registered plugin through Hydra, through the planner's fast path, and into a key."""

import contextlib
import dataclasses
import inspect
import itertools
import re
import typing
from pathlib import Path

import pytest
from PIL import Image

from fedspan.benchmark.bibliography import citable
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.fields import defaults_of
from fedspan.benchmark.protocol import Protocol
from fedspan.benchmark.registry import KINDS, all_plugins, broken, plugins
from fedspan.benchmark.spec import compose, settings
from fedspan.benchmark.spec.diagnostics import Diagnostics
from fedspan.benchmark.spec.settings import How

PLUGINS = [(cls.kind, cls.name) for cls in all_plugins()]
# Hydra takes a while for each composition, so plugins of all kinds are composed together.
ROWS = [
    tuple(filter(None, row)) for row in itertools.zip_longest(*([one for one in PLUGINS if one[0] == k] for k in KINDS))
]
every_row = pytest.mark.parametrize("row", ROWS, ids=["-".join(itertools.chain(*row)) for row in ROWS])
every_plugin = pytest.mark.parametrize(("kind", "name"), PLUGINS, ids=[f"{kind}-{name}" for kind, name in PLUGINS])


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """Return two folders with the same images, for datasets that read a root."""
    both = [tmp_path_factory.mktemp("images") for _ in range(2)]
    for root in both:
        for number, (split, label) in enumerate((s, c) for s in ("train", "test") for c in "ab"):
            (root / split / label).mkdir(parents=True)
            Image.new("RGB", (6, 6), (40 * number, 0, 0)).save(root / split / label / "one.png")
    return both


class NoData(Exception):
    """A dataset needs files that a test cannot make."""


def chosen(kind, name, roots):
    """Return the overrides that put a plugin into a cell; raise `NoData`."""
    if kind == "addon":
        return {"addons": [name]}
    cls = plugins(kind)[name]
    if "root" not in defaults_of(cls):
        return {kind: name}
    overrides = {kind: name, f"{kind}.root": str(roots[0])}
    try:
        key(overrides)
    except UserError as error:
        if f"{kind}.root" not in str(error):
            raise
        raise NoData(f"it needs its data: {error}") from None
    return overrides


def together(row, overrides):
    """Return the overrides that `overrides` makes of each plugin of a row whose data is there."""
    found = {}
    for kind, name in row:
        with contextlib.suppress(NoData):
            found |= overrides(kind, name)
    return found


@pytest.fixture
def choose(kind, name, roots):
    """Return the overrides that put a plugin into a cell; skip if it needs data that a test cannot make."""
    try:
        return chosen(kind, name, roots)
    except NoData as reason:
        pytest.skip(str(reason))


def prefix(kind, name):
    return f"addon.{name}" if kind == "addon" else kind


def composed(overrides):
    """Return what Hydra composes."""
    return compose.plain_config(compose.by_hydra(compose.override_words(overrides)))


def key(overrides):
    return compose.make_cell(compose.resolve(overrides)).key


def other_values(hint, value):
    """Yield values of a field that differ from `value`, likely valid ones first."""
    origin, arms = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        yield from (arm for arm in arms if arm != value)
    elif origin in (tuple, list):
        if value:
            yield list(value[:-1])
        yield [1]
        yield ["a"]
    elif arms:
        yield from other_values(next(arm for arm in arms if arm is not type(None)), value)
    elif hint is bool:
        yield not value
    elif hint is int:
        yield from (value + 1, value + 8, 1)
    elif hint is float:
        yield from ((value or 0.5) * 0.5, (value or 0.0) + 0.5, 0.25)
    elif hint is str:
        yield from (f"{value}x", "a")


def changed(overrides, where, cls, field, *first):
    """Return overrides with one more field set to another valid value, and the key without and with it."""
    default = defaults_of(cls)[field]
    for value in (*first, *other_values(typing.get_type_hints(cls)[field], default)):
        if value == default:
            continue
        more = {**overrides, f"{where}.{field}": value}
        try:
            return more, key(overrides), key(more)
        except UserError:
            continue
    pytest.fail(f"no other value found for {where}.{field}")


PLACES = ("root", "source")


def each_field(kind, name, roots):
    """Yield for each field of a plugin: itself, a cell with another value of it, and the key without and with that."""
    cls, where = plugins(kind)[name], prefix(kind, name)
    for field in dataclasses.fields(cls):
        start = chosen(kind, name, roots)
        if "source" in defaults_of(cls) and field.name != "root":  # its own images instead of the published ones
            del start[f"{where}.root"]
            start[f"{where}.source"] = str(roots[0])
        first = [str(roots[1])] if field.name in PLACES else []  # another place with the same content
        yield field, *changed(start, where, cls, field.name, *first)


@every_row
def test_hydra_and_the_planner_agree(row, roots):
    overrides = together(row, lambda kind, name: chosen(kind, name, roots))
    by_hydra, by_planner = composed(overrides), compose.resolve(overrides)
    assert by_hydra == by_planner
    assert compose.make_cell(by_hydra).key == compose.make_cell(by_planner).key


@every_row
def test_every_field_goes_through_hydra(row, roots):
    def all_fields(kind, name):
        return {
            word: value for _, more, _, _ in each_field(kind, name, roots) for word, value in more.items()
        } or chosen(kind, name, roots)

    overrides = together(row, all_fields)
    assert composed(overrides) == compose.resolve(overrides)


@every_plugin
def test_a_field_that_changes_results_and_no_other_changes_the_key(kind, name, choose, roots):
    for field, _, before, after in each_field(kind, name, roots):
        assert (before == after) == bool(field.metadata.get("how")), f"{name}.{field.name}"


@every_plugin
def test_the_docstring_names_a_source_with_its_year(kind, name):
    assert re.search(r"\b(19|20)\d\d\b", inspect.getdoc(plugins(kind)[name]))


@every_plugin
def test_the_papers_can_be_cited(kind, name):
    assert all(paper.link for paper in citable(plugins(kind)[name]))


@every_plugin
def test_an_unknown_field_is_named_with_its_neighbour(kind, name, choose):
    fields = [field.name for field in dataclasses.fields(plugins(kind)[name])]
    wrong = f"{prefix(kind, name)}.{fields[0] if fields else 'nothing'}x"
    with pytest.raises(UserError) as error:
        compose.resolve({**choose, wrong: 1})
    assert wrong in str(error.value)
    assert "\n" not in str(error.value)
    assert not fields or "did you mean" in str(error.value)


@every_plugin
def test_values_of_a_wrong_type_are_refused_by_name(kind, name, choose):
    cls = plugins(kind)[name]
    for field in dataclasses.fields(cls):
        for value in ({"a": 1}, [[1]], True if typing.get_type_hints(cls)[field.name] is not bool else "perhaps"):
            where = f"{prefix(kind, name)}.{field.name}"
            with pytest.raises(UserError, match=re.escape(field.name)):
                key({**choose, where: value})


@pytest.mark.parametrize("kind", KINDS)
def test_a_misspelt_name_is_answered_with_the_right_one(kind):
    name = next(iter(plugins(kind)))
    with pytest.raises(UserError, match=f"unknown {kind} '{name}x'; did you mean '{name}'"):
        key({"addons": [f"{name}x"]} if kind == "addon" else {kind: f"{name}x"})


@pytest.mark.parametrize("name", sorted(compose.options("protocol")))
def test_protocol_presets_compose(name):
    by_hydra, by_planner = composed({"protocol": name}), compose.resolve({"protocol": name})
    assert by_hydra == by_planner
    assert compose.make_cell(by_hydra).protocol == compose.make_cell(by_planner).protocol


PROTOCOL = [field.name for field in dataclasses.fields(Protocol)]


def with_other(field):
    """Return overrides with another value of a field of the protocol, and the key without and with it."""
    steps = {"protocol.schedule": "multistep", "protocol.milestones": [5]} if field in ("milestones", "factor") else {}
    return changed(steps, "protocol", Protocol, field)


@pytest.mark.parametrize("field", PROTOCOL)
def test_every_number_of_the_protocol_changes_the_key(field):
    _, before, after = with_other(field)
    assert before != after


def test_every_number_of_the_protocol_goes_through_hydra():
    overrides = {word: value for field in PROTOCOL for word, value in with_other(field)[0].items()}
    assert {word.partition(".")[2] for word in overrides} == set(PROTOCOL)
    assert composed(overrides) == compose.resolve(overrides)


WHAT = {
    "clients": 9,
    "participation": 0.5,
    "seed": 1,
    "scale": "small",
    "addons": ["feddecorr"],
    "dataset.limit": 300,
    "partition": "iid",
    "model.width": 3,
    "algorithm": "fedprox",
    "protocol": "feddecorr_cifar10",
    "diagnostics.spectra": True,
}


@pytest.mark.parametrize(("name", "value"), WHAT.items(), ids=WHAT.keys())
def test_what_is_computed_changes_the_key(name, value):
    assert key({name: value}) != key({})


DIAGNOSTICS = {  # what switches a measurement on, and its own settings beside the round
    "spectra": (True, {"clients", "top", "log_threshold"}),
    "embedding": ("tsne", {"clients", "classes", "images"}),
    "alignment": (True, set()),
    "penalties": (True, set()),
    "shares": (True, set()),
    "spaces": (True, set()),
}


@pytest.mark.parametrize("switch", DIAGNOSTICS)
def test_settings_of_the_diagnostics_change_the_key_only_while_they_are_on(switch):
    on, own = DIAGNOSTICS[switch]
    own = own | {"round"}
    assert key({f"diagnostics.{switch}": on}) != key({})
    others = {field.name for field in dataclasses.fields(Diagnostics)} - set(DIAGNOSTICS)
    assert others == {"round"}.union(*(settings for _, settings in DIAGNOSTICS.values()))
    for field in others:
        _, before, after = changed({f"diagnostics.{switch}": on}, "diagnostics", Diagnostics, field)
        assert (before != after) == (field in own)
        _, before, after = changed({}, "diagnostics", Diagnostics, field)
        assert before == after


def test_add_ons_that_are_not_used_do_not_change_the_key():
    assert key({"addon.feddecorr.beta": 0.7}) == key({})


def test_the_order_of_add_ons_is_part_of_the_key():
    cell = compose.make_cell(compose.resolve({}))
    a, b = (plugins("addon")["feddecorr"](beta=beta) for beta in (0.1, 0.2))
    assert dataclasses.replace(cell, addons=(a, b)).key != dataclasses.replace(cell, addons=(b, a)).key


def test_a_plugins_version_is_part_of_the_key(monkeypatch):
    before = key({"algorithm": "fedprox"})
    monkeypatch.setattr(plugins("algorithm")["fedprox"], "version", 2)
    assert key({"algorithm": "fedprox"}) != before


HOW = {
    "board": "digits",
    "device": "cuda",
    "executor": "other",
    "threads": 2,
    "numerics": "native",
    "fresh": True,
    "workers": 7,
    "launcher": "joblib",
    "gpus": 0.5,
    "checkpoint_seconds": 1.0,
    "timeout": 60.0,
    "tracking": False,
    "traceback": True,
    "plugins": str(Path(__file__).with_name("__init__.py")),  # an empty file
    "paths.data": "elsewhere",
    "paths.results": "elsewhere",
    "paths.pages": "elsewhere",
}


def test_all_settings_are_either_what_or_how():
    how = settings.how_defaults()
    named = {name for name in how if name != "paths"} | {f"paths.{name}" for name in how["paths"]}
    assert named == set(HOW)
    what = set(settings.what_defaults()) | set(compose.GROUPS) | {"addon", "diagnostics"}
    assert set(compose.resolve({})) == set(how) | what


@pytest.mark.parametrize(("name", "value"), HOW.items(), ids=HOW.keys())
def test_where_and_how_never_change_the_key(name, value):
    assert key({name: value}) == key({})


def test_where_and_how_go_through_hydra():
    assert composed(HOW) == compose.resolve(HOW)


def test_how_reaches_the_run():
    how, default = settings.How.of(compose.resolve(HOW)), settings.How.of(compose.resolve({}))
    assert (how.device, how.executor, how.threads, how.checkpoint_seconds) == ("cuda", "other", 2, 1.0)
    assert (str(how.results), str(how.data), str(how.pages)) == ("elsewhere", "elsewhere", "elsewhere")
    same = [field.name for field in dataclasses.fields(How) if getattr(how, field.name) == getattr(default, field.name)]
    assert same == ["command"], "a setting that does not reach the run, or none of `HOW`"


def test_no_source_of_plugins_is_broken():
    assert broken() == []
