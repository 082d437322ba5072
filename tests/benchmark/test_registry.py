import dataclasses
import hashlib
import importlib
import inspect
import os
from typing import Literal

import pytest

from fedspan.benchmark import discovery, registry
from fedspan.benchmark.component import Component, algorithm
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.fields import from_values
from fedspan.benchmark.records.sources import sources_behind, syntax_digest
from fedspan.benchmark.registry import all_plugins, find, how, later, plugins
from fedspan.benchmark.running.cell_run import run_cell
from fedspan.benchmark.task import Dataset
from tests.helpers import how as how_to_run
from tests.helpers import toy_cell


@pytest.fixture(autouse=True)
def registry_is_restored(monkeypatch):
    plugins("algorithm")  # discover first
    monkeypatch.setattr(registry, "_plugins", {kind: dict(known) for kind, known in registry._plugins.items()})


def test_a_decorated_class_is_a_frozen_dataclass_under_its_name():
    @algorithm("fresh")
    class Fresh(Component):
        """Nobody 2020."""

        mu: float = 0.5

    assert find("algorithm", "fresh") is Fresh
    assert Fresh().what() == {"name": "fresh", "version": 1, "mu": 0.5}
    assert (Fresh().label(), Fresh(mu=1.0).label()) == ("fresh", "fresh(mu=1.0)")
    with pytest.raises(dataclasses.FrozenInstanceError):
        Fresh().mu = 1.0


def test_settings_that_say_where_or_how_do_not_identify_a_plugin():
    @registry.decorator("dataset")("rooted")
    class Rooted(Dataset):
        """Nobody 2020."""

        root: str = how("")
        size: int = 3

    assert Rooted(root="somewhere", size=4).what() == {"name": "rooted", "version": 1, "limit": 0, "size": 4}
    assert Rooted(root="somewhere").label() == "rooted"


def test_a_setting_that_came_later_leaves_what_was_there_before_as_it_was():
    @algorithm("grown")
    class Grown(Component):
        """Nobody 2020."""

        mu: float = 0.5
        nesterov: bool = later(False)

    assert Grown().what() == {"name": "grown", "version": 1, "mu": 0.5}
    assert Grown().settings() == {"name": "grown", "version": 1, "mu": 0.5, "nesterov": False}
    assert Grown(nesterov=True).what() == Grown(nesterov=True).settings() == {**Grown().settings(), "nesterov": True}
    assert (Grown().label(), Grown(nesterov=True).label()) == ("grown", "grown(nesterov=True)")
    assert from_values(Grown, {"nesterov": True}, "algorithm=grown") == Grown(nesterov=True)


def test_a_label_gives_the_beginning_of_a_digest_alone():
    @registry.decorator("dataset")("digested")
    class Digested(Dataset):
        """Nobody 2020."""

        content: str = ""

    digest = hashlib.sha256(b"images").hexdigest()
    assert Digested(content=digest).label() == f"digested(content={digest[:8]}…)"
    assert Digested(content=digest[:40]).label() == f"digested(content={digest[:40]})"


def make(called, doc="Nobody 2020.", /, **body):
    algorithm(called)(type("Fresh", (Component,), {"__doc__": doc, "__module__": __name__, **body}))


@pytest.mark.parametrize("doc", [None, "", "A method by somebody.", "Version 12020 of 20201."])
def test_a_docstring_without_a_year_is_refused(doc):
    with pytest.raises(UserError, match=r"algorithm 'fresh' .* needs a docstring that names its source with a year"):
        make("fresh", doc)


@pytest.mark.parametrize(
    ("name", "near"),
    [("FedAvg", "fed_avg"), ("fed-avg", "fed_avg"), ("1st", "st"), ("", "fresh"), ("a b", "a_b"), ("a.b-", "a_b")],
)
def test_a_name_that_no_command_line_could_hold_is_refused(name, near):
    with pytest.raises(UserError, match=rf'must be lower case letters, digits and _; write @algorithm\("{near}"\)'):
        make(name)


def test_two_plugins_of_one_name_are_refused_with_both_places():
    with pytest.raises(UserError, match=r"is registered twice: by FedAvg \(.*fedavg\.py, line \d+\) and by Fresh "):
        make("fedavg")


def test_two_classes_of_one_file_cannot_share_a_name():
    make("fresh")
    with pytest.raises(UserError, match=r"'fresh' is registered twice: by Fresh .* and by Other "):
        make("fresh", __qualname__="Other")


def test_reloading_a_file_replaces_its_plugin(monkeypatch):
    before, module = find("algorithm", "fedavg"), importlib.import_module("fedspan.methods.algorithms.fedavg")
    monkeypatch.setattr(module, "FedAvg", before)  # and so it is again for the tests that follow
    monkeypatch.setitem(registry._plugins["algorithm"], "fedavg", before)
    importlib.reload(module)
    assert find("algorithm", "fedavg") is not before


@pytest.mark.parametrize("field", ["name", "version", "kind"])
def test_a_field_that_would_hide_an_identity_is_refused(field):
    with pytest.raises(UserError, match=f"cannot have a field called '{field}'"):
        make("fresh", __annotations__={field: int}, **{field: 1})


@pytest.mark.parametrize(("wrong", "near"), [("fedprx", "fedprox"), ("feddavg", "fedavg")])
def test_an_unknown_name_is_answered_with_a_near_one(wrong, near):
    with pytest.raises(UserError, match=f"unknown algorithm '{wrong}'; did you mean '{near}'"):
        find("algorithm", wrong)


def test_a_name_near_to_nothing_is_answered_with_all():
    with pytest.raises(UserError, match=r"known: .*fedavg.*fedprox"):
        find("algorithm", "zzz")


def test_a_name_near_to_nothing_is_answered_with_where_plugins_are_looked_for(monkeypatch):
    monkeypatch.setattr(registry, "_files", {"/where/my.py": "./my.py"})
    places = r"Plugins are looked for in fedspan\.methods, fedspan\.tasks, installed distributions, and files named by "
    with pytest.raises(UserError, match=places + r"plugins= or FEDSPAN_PLUGINS \(\./my\.py\)$"):
        find("algorithm", "zzz")
    monkeypatch.setattr(registry, "_files", {})
    with pytest.raises(UserError, match=r"FEDSPAN_PLUGINS \(none\)$"):
        find("algorithm", "zzz")


@pytest.mark.parametrize(
    ("kind", "name", "answer"),
    [
        ("algorithm", "feddecorr", "'feddecorr' is not an algorithm but an addon; write addons=[feddecorr]"),
        ("addon", "fedprox", "'fedprox' is not an addon but an algorithm; write algorithm=fedprox"),
        ("model", "digits", "'digits' is not a model but a dataset; write dataset=digits"),
    ],
)
def test_a_name_of_another_kind_is_answered_with_how_to_write_it(kind, name, answer):
    with pytest.raises(UserError) as found:
        find(kind, name)
    assert str(found.value) == answer


def test_a_broken_entry_point_is_told_when_it_is_asked_for(monkeypatch):
    theirs = discovery.Broken(frozenset(["theirs"]), "their.module: ImportError: no")
    monkeypatch.setattr(registry, "_broken", [theirs])
    with pytest.raises(UserError, match=r"unknown algorithm 'theirs' .*their\.module: ImportError: no"):
        find("algorithm", "theirs")


def test_one_broken_entry_point_does_not_stop_the_others(monkeypatch):
    class Entry:
        def __init__(self, name, error):
            self.name, self.value, self.error = name, f"{name}.module", error

        def load(self):
            if self.error:
                raise self.error
            make(self.name)

    entries = [Entry("bad", ImportError("no such thing")), Entry("good", None)]
    monkeypatch.setattr(registry, "_discovered", False)
    monkeypatch.setattr(registry, "_broken", [])
    monkeypatch.setattr(discovery.importlib.metadata, "entry_points", lambda group: entries)
    assert "good" in plugins("algorithm")
    [one] = registry.broken()
    assert one.names == {"bad"}
    assert one.text.startswith("plugin 'bad' could not be loaded: bad.module: ImportError: no such thing (")


# files that a user names ------------------------------------------------------------------------------

METHOD = """
from fedspan.benchmark.component import Component, algorithm

@algorithm("{name}")
class Mine(Component):
    "Nobody 2020."
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files of two methods, as the working folder; what is imported here is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_files", {})
    monkeypatch.setattr(registry, "_broken", [])
    monkeypatch.setattr(discovery, "_imported", {})
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text(METHOD.format(name=name))
    return tmp_path


def test_a_file_brings_its_plugins_under_a_module_of_its_own(folder):
    (folder / "random.py").write_text(METHOD.format(name="drawn"))
    registry.load_files(["./random.py"])
    assert find("algorithm", "drawn").__module__ not in ("random", "drawn")
    assert importlib.import_module("random").random
    registry.load_files(["random.py", str(folder / "random.py")])


def test_a_folder_brings_the_plugins_of_all_its_files(folder):
    for test in ("test_first.py", "conftest.py"):  # as `fedspan new --package` writes beside a plugin
        (folder / test).write_text("import a_package_that_only_tests_have")
    registry.load_files([str(folder)])
    assert {"first", "second"} <= set(plugins("algorithm"))
    assert registry.broken() == []


def test_what_lies_behind_a_plugin_of_a_file_is_that_file(folder):
    registry.load_files(["first.py"])
    assert list(sources_behind(find("algorithm", "first").__module__).values()) == [(folder / "first.py").read_text()]


def test_a_record_names_the_source_that_trained_whatever_is_edited_meanwhile(folder):
    registry.load_files(["first.py"])
    (folder / "first.py").write_text("class First(")
    record = run_cell(toy_cell(find("algorithm", "first")()), how_to_run(folder))
    assert record["status"] == "done"
    assert record["provenance"]["sources"]["algorithm:first"] == syntax_digest([METHOD.format(name="first")])


def test_a_file_of_the_package_is_not_imported_again(folder):
    registry.load_files([inspect.getfile(find("algorithm", "fedavg"))])


MISTAKES = {
    "absent.py": "the plugin file absent.py does not exist",
    "~no-user/a.py": "the plugin file ~no-user/a.py does not exist",
    "a" * 300: "the plugin file a+ does not exist",
    "text.txt": r"text.txt must be a Python file \(.py\), or a folder that holds some",
    "empty": r"empty must be a Python file \(.py\), or a folder that holds some",
    "broken.py": r"broken.py cannot be imported: ZeroDivisionError: division by zero \(.*broken.py, line 7\)",
    "again.py": "again.py cannot be imported: algorithm 'fedavg' is registered twice",
    "helped.py": r"No module named 'first' \(.*, line 1\); 'first' beside it cannot be imported: a plugin",
    "alone.py": r"No module named 'nowhere' \(.*, line 1\)$",
}


@pytest.mark.parametrize(("given", "message"), MISTAKES.items(), ids=MISTAKES)
def test_a_file_that_brings_nothing_is_one_line(folder, given, message):
    (folder / "text.txt").touch()
    (folder / "empty").mkdir()
    (folder / "broken.py").write_text(METHOD.format(name="half") + "1 / 0")
    (folder / "again.py").write_text(METHOD.format(name="fedavg"))
    (folder / "helped.py").write_text("from first import First")
    (folder / "alone.py").write_text("import nowhere")
    with pytest.raises(UserError, match=message):
        registry.load_files([given])
    assert "half" not in plugins("algorithm"), "half a file registered something"


def test_a_folder_whose_name_looks_like_an_unknown_user_is_a_folder(folder):
    (folder / "~no-user").mkdir()
    (folder / "~no-user" / "broken.py").write_text("1 / 0")
    with pytest.raises(UserError, match=r"broken\.py cannot be imported: ZeroDivisionError"):
        registry.load_files(["~no-user/broken.py"])


def test_a_broken_file_of_a_folder_is_reported_and_stops_what_asks_for_it_alone(folder):
    (folder / "broken.py").write_text(METHOD.format(name="half") + "1 / 0")
    registry.load_files([str(folder)])
    assert {"first", "second"} <= set(plugins("algorithm"))
    [one] = registry.broken()
    assert (
        one.text == f"{folder}/broken.py cannot be imported: ZeroDivisionError: division by zero ({one.path}, line 7)"
    )
    with pytest.raises(UserError, match=r"unknown algorithm 'half' \(.*broken\.py cannot be imported: ZeroDivision"):
        find("algorithm", "half")


def test_a_link_to_itself_in_a_folder_is_reported_and_stops_no_other_file(folder):
    (folder / "loop.py").symlink_to("loop.py")
    registry.load_files([str(folder)])
    assert {"first", "second"} <= set(plugins("algorithm"))
    [one] = registry.broken()
    assert one.text.startswith(f"{folder}/loop.py cannot be imported: OSError: ")


def test_two_files_of_a_folder_with_one_name_are_both_named_and_neither_is_chosen(folder):
    (folder / "third.py").write_text(METHOD.format(name="second"))
    registry.load_files([str(folder)])
    assert find("algorithm", "first")
    places = r"by Mine \(.*/second\.py, line 4\) and by Mine \(.*/third\.py, line 4\); rename one"
    with pytest.raises(UserError, match=f"algorithm 'second' is registered twice: {places}"):
        find("algorithm", "second")


def test_a_file_that_was_mended_is_no_longer_reported(folder):
    (folder / "third.py").write_text("1 / 0")
    registry.load_files([str(folder)])
    (folder / "third.py").write_text(METHOD.format(name="third"))
    registry.reload_edited()
    assert registry.broken() == []
    assert find("algorithm", "third")


BARE = """
from fedspan.benchmark.component import Component, algorithm
{line}
class MyAvg(Component):
    "Nobody 2020."
"""


@pytest.mark.parametrize(("kind", "name"), [("algorithm", "myavg"), ("addon", "my_avg")])
def test_a_class_without_its_decorator_is_named_with_what_to_write(folder, kind, name):
    (folder / "bare.py").write_text(BARE.format(line=""))
    registry.load_files(["bare.py"])
    with pytest.raises(UserError) as found:
        find(kind, name)
    place = f"{folder}/bare.py, line 4"
    assert str(found.value) == (
        f"unknown {kind} '{name}' (MyAvg ({place}) has no decorator; write @{kind}(\"{name}\") above it)"
    )


def test_a_misspelt_name_is_not_taken_for_a_class_without_decorator(folder):
    (folder / "bare.py").write_text(BARE.format(line=""))
    registry.load_files(["bare.py"])
    with pytest.raises(UserError, match="unknown algorithm 'fedprix'; did you mean 'fedprox'"):
        find("algorithm", "fedprix")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("@algorithm", "@algorithm needs a name"),
        ("@algorithm()", "algorithm name ''"),
        ("@algorithm('MyAvg')", "lower"),
    ],
)
def test_a_decorator_without_a_name_is_told_one(folder, line, message):
    (folder / "bare.py").write_text(BARE.format(line=line))
    with pytest.raises(UserError, match=rf'{message}.*; write @algorithm\("my_avg"\)') as found:
        registry.load_files(["bare.py"])
    assert f"({folder}/bare.py, line 3)" in str(found.value)


@pytest.mark.parametrize("later", ["", "from __future__ import annotations\n"], ids=["now", "later"])
@pytest.mark.parametrize("ends", ["0, 1.0", "-1.0, 1.0", "1.0, 0.1", "0.1, float('inf')", "'a', 1.0"])
def test_a_range_with_broken_ends_is_refused_with_the_line_of_its_field(folder, ends, later):
    source = METHOD.format(name="ranged").replace("import Comp", "import algorithm, Comp")
    field = f"    mu: Annotated[float, log({ends})] = 0.5\n"
    imports = "from typing import Annotated\nfrom fedspan.benchmark.search import log\n"
    (folder / "ranged.py").write_text(later + imports + source + field)
    line = 9 + bool(later)
    with pytest.raises(UserError, match=r"ranged\.py cannot be imported: .*: the |is empty") as found:
        registry.load_files(["ranged.py"])
    assert f"({folder}/ranged.py, line {line})" in str(found.value)
    assert "Mine.mu" in str(found.value) or not later, "Python itself reads the annotation, and knows no field"


def test_files_that_the_environment_names_bring_plugins_and_stop_nothing(folder, monkeypatch):
    (folder / "broken.py").write_text("import no_such_module\n" + METHOD.format(name="lost"))
    monkeypatch.setenv("FEDSPAN_PLUGINS", os.pathsep.join(["first.py", "absent.py", "broken.py", "second.py"]))
    monkeypatch.setattr(registry, "_discovered", False)
    assert {"first", "second", "fedavg"} <= set(plugins("algorithm"))
    assert [one.text.split(":")[0] for one in registry.broken()] == [
        "FEDSPAN_PLUGINS",
        f"{folder}/broken.py cannot be imported",
    ]
    with pytest.raises(
        UserError, match=r"unknown algorithm 'lost' \(.*No module named 'no_such_module' \(.*, line 1\)"
    ):
        find("algorithm", "lost")


def test_every_kind_has_plugins():
    assert {cls.kind for cls in all_plugins()} == set(registry.KINDS)


# build --------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Settings:
    flag: bool = False
    count: int = 1
    rate: float = 0.5
    text: str = "a"
    form: Literal["released", "paper"] = "paper"
    many: tuple[int, ...] = ()
    pair: tuple[int, float] = (1, 0.5)
    maybe: int | None = None


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"count": 3.0}, 3),
        ({"rate": 1}, 1.0),
        ({"rate": 1e-9}, 1e-9),
        ({"text": 5}, "5"),
        ({"many": [1, 2]}, (1, 2)),
        ({"many": []}, ()),
        ({"pair": [2, 0.25]}, (2, 0.25)),
        ({"maybe": None}, None),
        ({"maybe": 4}, 4),
        ({"form": "released"}, "released"),
        ({"flag": True}, True),
    ],
)
def test_plain_values_become_typed_ones(given, kept):
    (name,) = given
    value = getattr(from_values(Settings, given, "here"), name)
    assert value == kept
    assert type(value) is type(kept)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("flag", 1, "must be true or false, got 1"),
        ("flag", "true", "must be true or false, got 'true'"),
        ("count", 1.5, "must be a whole number, got 1.5"),
        ("count", True, "must be a whole number, got True"),
        ("count", "3", "must be a whole number, got '3'"),
        ("count", float("inf"), "must be a whole number, got inf"),
        ("count", float("nan"), "must be a whole number, got nan"),
        ("count", None, "must be a whole number, got None"),
        ("rate", "fast", "must be a number, got 'fast'"),
        ("rate", float("nan"), "must be a finite number, got nan"),
        ("rate", 10**400, "must be a finite number, got 1000"),
        ("rate", float("-inf"), "must be a finite number, got -inf"),
        ("rate", False, "must be a number, got False"),
        ("text", True, "must be a string, got True"),
        ("text", ["a"], r"must be a string, got \['a'\]"),
        ("form", "papr", "must be one of released, paper, got 'papr'; did you mean 'paper'"),
        ("form", 1, "must be one of released, paper, got 1$"),
        ("many", 3, "must be a list, got 3"),
        ("many", "12", "must be a list, got '12'"),
        ("many", ["a"], "must be a whole number, got 'a'"),
        ("pair", [1], r"must be a list of 2, got \[1\]"),
        ("pair", [1, 0.5, 2], r"must be a list of 2, got \[1, 0.5, 2\]"),
        ("pair", [0.5, 1], "must be a whole number, got 0.5"),
        ("maybe", "x", "must be a whole number, got 'x'"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(name, value, rule):
    with pytest.raises(UserError, match=rf"^here\.{name} {rule}"):
        from_values(Settings, {name: value}, "here")


def test_an_unknown_field_is_refused_with_a_near_one():
    with pytest.raises(UserError, match=r"unknown field 'here\.cuont'; did you mean 'count'"):
        from_values(Settings, {"cuont": 1}, "here")
