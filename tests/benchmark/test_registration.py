"""What a class must be to become a plugin: nothing in it is silently ignored."""

import functools
import inspect
from pathlib import Path
from typing import ClassVar

import pytest

from fedspan.benchmark import errors, registration, registry
from fedspan.benchmark.component import Component, algorithm
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.records import sources
from fedspan.benchmark.registry import all_plugins, broken, decorator, how, plugins
from fedspan.benchmark.task import Dataset, Model


@pytest.fixture(autouse=True)
def registry_is_restored(monkeypatch):
    plugins("algorithm")  # discover first
    monkeypatch.setattr(registry, "_plugins", {kind: dict(known) for kind, known in registry._plugins.items()})


def make(base=Component, kind="algorithm", /, annotations=None, **body):
    made = {"__doc__": "Nobody 2020.", "__module__": __name__, "__annotations__": annotations or {}, **body}
    return decorator(kind)("fresh")(type("Fresh", (base,), made))


def returning(*names):
    """Return a function of these arguments."""
    return eval(f"lambda {', '.join(names)}: None")


def test_every_plugin_at_hand_passes():
    assert broken() == []
    assert len(list(all_plugins())) > 40


REFUSED = {
    "a misspelt hook": ({"servr": returning("self", "delta", "agg")}, "'servr' is not a hook .* did you mean 'server'"),
    "a method that nothing calls": ({"anything": returning("self")}, "'anything' is not a hook of Component, and no"),
    "a method that calls itself alone": ({"again": lambda self: self.again()}, "'again' is not a hook"),
    "a misspelt property": (
        {"idel": property(lambda self: frozenset())},
        "'idel' is not a hook .* did you mean 'idle'",
    ),
    "a property as a hook": ({"idle": lambda self: frozenset()}, "'idle' is a property: write @property above it"),
    "a hook as a property": ({"server": property(lambda self: 1)}, "'server' is a hook, not a property"),
    "a hook of other arguments": (
        {"server": returning("self", "delta")},
        r"the hook server\(delta, agg\) is called with these arguments, but takes \(delta\)",
    ),
    "a hook that is a number": ({"penalty": 0.0}, "'penalty' is a hook, and cannot be 0.0"),
    "a field without annotation": (
        {"k": 3},
        r"'k' has no annotation, so it is not a setting; write k: int = 3, or _k ",
    ),
    "a misspelt class attribute": ({"nuetral": {}}, "'nuetral' has no annotation.* did you mean 'neutral'"),
}


@pytest.mark.parametrize(("body", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_nothing_would_look_at_is_refused(body, message):
    with pytest.raises(UserError, match=rf"^algorithm 'fresh' \(.*\): {message}"):
        make(**body)
    assert "fresh" not in plugins("algorithm")


MISREAD = {
    "one name without its comma": ({"excludes": ("feddecorr")}, r"'excludes' must be a tuple .*, as \('feddecorr',\)"),
    "one paper without its comma": ({"papers": ("li2020")}, r"'papers' must be a tuple .*, as \('li2020',\)"),
    "a list": ({"excludes": ["feddecorr"]}, "'excludes' must be a tuple of names"),
    "a number as a title": ({"title": 3}, "'title' must be a string, got 3"),
    "a text as a switch": ({"pools": "no"}, "'pools' must be True or False, got 'no'"),
    "pairs as a mapping": ({"neutral": [("mu", 0.0)]}, "'neutral' must be a mapping"),
    "no setting": ({"neutral": {"mue": 0.0}}, "'neutral' names 'mue', which is not a setting; did you mean 'mu'"),
    "no coefficient": ({"coefficient": "my"}, "'coefficient' names 'my', which is not a setting"),
    "a wording of nothing": ({"wording": {"nu": "{} strong"}}, "'wording' names 'nu', which is not a setting"),
    "a wording by name": ({"wording": {"mu": "strength {mu}"}}, r"'wording' has 'strength \{mu\}', .* as \{\}"),
    "a wording with an open brace": ({"wording": {"mu": {0.0: "off", ...: "{"}}}, r"'wording' has '\{'"),
    "a title with an annotation": ({"title": "Fresh"}, "'title' is not a setting; write title = ..., without an annot"),
}


@pytest.mark.parametrize(("body", "message"), MISREAD.values(), ids=MISREAD.keys())
def test_a_class_attribute_of_the_wrong_form_is_refused(body, message):
    annotations = {"mu": float} | ({"title": str} if "annot" in message else {})
    with pytest.raises(UserError, match=rf"^algorithm 'fresh' \(.*\): {message}"):
        make(annotations=annotations, mu=0.1, **body)
    assert "fresh" not in plugins("algorithm")


def test_a_default_of_another_type_is_refused():
    with pytest.raises(
        UserError, match=r"^algorithm 'fresh' \(.*\): the default of k must be a whole number, got 0\.5$"
    ):
        make(annotations={"k": int}, k=0.5)


def test_a_field_without_a_default_is_refused():
    with pytest.raises(UserError, match=r"Fresh\.mu \(.*\) needs a default value"):
        make(annotations={"mu": float})


def test_a_default_that_dataclasses_would_not_see_is_refused():
    @algorithm("grown")
    class Grown(Component):
        """Nobody 2020."""

        mu: float = 0.5

    with pytest.raises(UserError, match="'mu' has no annotation, so it changes no default"):
        make(Grown, mu=0.1)
    with pytest.raises(UserError, match="'limit' has no annotation"):
        make(Dataset, "dataset", limit=5)


MU = {"annotations": {"mu": float}, "mu": 0.1}
ALLOWED = {
    "private names": {"_k": 3, "_helper": returning("self")},
    "a constant": {"annotations": {"k": ClassVar[int]}, "k": 3},
    "known attributes": {"neutral": {}, "excludes": (), "coefficient": "", "version": 2, "pools": False},
    "an exclusion with its reason": {"excludes": {"feddecorr": "both whiten features"}},
    "what pages show": {"title": "", "summary": "", "papers": (), "wording": {"mu": "{0} of {0}"}, **MU},
    "a helper of a hook": {"part": returning("self"), "server": lambda self, delta, agg: self.part()},
    "a helper inside a function inside a hook": {
        "part": returning("self"),
        "server": lambda self, delta, agg: [lambda: self.part()],
    },
    "a helper of a property": {"part": returning("self"), "idle": property(lambda self: self.part())},
    "a helper as a property": {
        "part": functools.cached_property(lambda self: 1),
        "server": lambda self, delta, agg: self.part,
    },
    "an attribute as a property": {"excludes": property(lambda self: ())},
    "a hook with more arguments that have defaults": {"server": lambda self, delta, agg, more=0: (delta, {})},
}


@pytest.mark.parametrize("body", ALLOWED.values(), ids=ALLOWED.keys())
def test_what_a_class_may_have_besides_hooks_and_settings(body):
    assert make(**body) is plugins("algorithm")["fresh"]


@pytest.mark.parametrize("kind", [dict, dict[str, float], "tuple", set[int], "Component", float | str], ids=str)
def test_a_field_of_a_type_that_no_setting_has_is_refused(kind):
    with pytest.raises(
        UserError, match=r"^algorithm 'fresh' \(.*\): 'k' has the type .*; a setting has one of these: "
    ):
        make(annotations={"k": kind}, k=None)


@pytest.mark.parametrize(("kind", "value"), [(Path, Path()), (Path | None, None), (tuple[Path, ...], ())], ids=str)
def test_a_path_is_no_setting_of_a_cell_but_how_it_is_computed(kind, value):
    with pytest.raises(
        UserError, match=r"^algorithm 'fresh' \(.*\): 'k' has the type .*Path.*; with how\(\.\.\.\), Path$"
    ):
        make(annotations={"k": kind}, k=value)
    assert make(annotations={"k": kind}, k=how(value)) is plugins("algorithm")["fresh"]


@pytest.mark.parametrize(
    ("base", "kind", "wanted"), [(object, "algorithm", "Component"), (Component, "model", "Model")]
)
def test_a_class_extends_that_of_its_kind(base, kind, wanted):
    with pytest.raises(UserError, match=rf"^{kind} 'fresh' \(.*\) must extend {wanted}; write class \w+\({wanted}\)$"):
        make(base, kind)


def test_the_line_of_a_field_is_not_that_of_a_text_which_begins_with_its_name():
    class Documented:
        """A plugin.

        lr is described here, rate as well.
        """

        lr: float = 0.1

        def rate(self):
            return self.lr

    first = inspect.getsourcelines(Documented)[1]
    assert errors.place_of(Documented, "lr") == f"{__file__}, line {first + 6}"
    assert errors.place_of(Documented, "rate") == f"{__file__}, line {first + 8}"


def test_a_type_that_nobody_defined_is_refused_with_its_field():
    with pytest.raises(UserError, match=r"^Fresh\.k \(.*\): NameError: name 'Nothing' is not defined$"):
        make(annotations={"k": "Nothing"}, k=None)


def test_what_an_undecorated_base_has_is_checked_too():
    base = type("Base", (Component,), {"__module__": __name__, "servr": returning("self", "delta", "agg")})
    with pytest.raises(UserError, match="'servr' is not a hook"):
        make(base)


def test_each_kind_is_held_to_its_own_hooks():
    with pytest.raises(UserError, match=r"'bild' is not a hook of Model.* did you mean 'build'"):
        make(Model, "model", bild=returning("self", "shape", "classes"))


def test_the_place_is_the_line_of_the_member(tmp_path):
    path = tmp_path / "typo.py"
    path.write_text(
        "from fedspan.benchmark.component import Component, algorithm\n\n\n"
        '@algorithm("typo")\nclass Typo(Component):\n    """Nobody 2020."""\n\n    def servr(self):\n        return 1\n'
    )
    with pytest.raises(UserError, match=rf"\({path}, line 8\): 'servr' is not a hook"):
        registry.load_files([str(path)])


def test_attributes_for_readers_change_no_digest():
    assert set(registration.FOR_READERS) <= sources.REMARKS
