"""Digests of sources: they change with what a number depends on, and with nothing else."""

import importlib
import os
import subprocess
import sys
from functools import cache
from types import SimpleNamespace

import pytest

from fedspan.benchmark import discovery
from fedspan.benchmark.component import Component
from fedspan.benchmark.discovery import keep_sources
from fedspan.benchmark.records import sources
from fedspan.benchmark.records.sources import (
    changed,
    code_provenance,
    engine_digest,
    source_digests,
    sources_behind,
    stale,
    syntax_digest,
    uncommitted,
)
from fedspan.methods.addons.spherefed import SphereFed
from fedspan.methods.algorithms.fedadam import FedAdam
from tests.helpers import toy_cell
from tests.toys import toy

FILES = {
    "__init__": "\n",  # what some versions of Python say of an empty file
    "plugin": "import json\nimport made_up_plugins.whole\nfrom . import sibling\n"
    "from made_up_plugins.helper import value\n",
    "helper": "from made_up_plugins.deeper import value\n",
    "deeper": "value = 1\n",
    "sibling": "x = 2\n",
    "whole": "y = 3\n",
    "stranger": "z = 4\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a function that writes a package with some files changed, imports it and returns what is behind it."""
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "made_up_plugins"
    folder.mkdir()

    def behind(**changed):
        for name, text in (FILES | changed).items():
            (folder / f"{name}.py").write_text(text)
        for name in [name for name in sys.modules if name.startswith("made_up_plugins")]:
            del sys.modules[name]
        sources_behind.cache_clear()
        importlib.invalidate_caches()
        importlib.import_module("made_up_plugins.stranger")
        importlib.import_module("made_up_plugins.plugin")
        return sources_behind("made_up_plugins.plugin")

    yield behind
    sources_behind.cache_clear()


def test_what_is_behind_a_plugin_is_what_it_imports_of_its_own_package(package):
    names = ("deeper", "helper", "plugin", "sibling", "whole")
    assert package() == {f"made_up_plugins.{name}": FILES[name] for name in names}


PARTS = {
    "a constant": "class Typed(Component):\n factor = {}",
    "a static method": "class Typed(Component):\n @staticmethod\n def f(): return {}",
    "a class method": "class Typed(Component):\n @classmethod\n def f(cls): return {}",
    "a property": "class Typed(Component):\n @property\n def f(self): return {}",
    "a default": "class Typed(Component):\n def f(self, x={}): return x",
    "a base": "class Base(Component):\n def f(self): return {}\nclass Typed(Base): pass",
    "a function in a method": "class Typed(Component):\n def f(self): return {{'x': lambda: {}}}",
    "a set": "class Typed(Component):\n def f(self, x): return x in {{'a', 'b', 'c', {}}}",
}


@pytest.mark.parametrize("text", PARTS.values(), ids=PARTS)
def test_the_digest_of_a_class_typed_into_an_interpreter_covers_all_that_it_runs(text):
    def typed(value):
        scope = {"__name__": "typed_in", "Component": Component}
        exec(text.format(value), scope)
        return source_digests(toy_cell(toy("algorithm", "typed")(scope["Typed"])()))["algorithm:typed"]

    assert typed(1) == typed(1)
    assert typed(1) != typed(2)


def test_the_digest_of_a_typed_class_is_the_same_in_every_process():
    code = f"""
from types import SimpleNamespace
from fedspan.benchmark.records.sources import source_digests
exec({PARTS["a set"].format(1)!r}, scope := {{"__name__": "typed_in", "Component": object}})
typed = scope["Typed"]()
typed.kind, typed.name = "algorithm", "typed"
print(source_digests(SimpleNamespace(plugins=[typed])))
"""
    seeds = [{**os.environ, "PYTHONHASHSEED": seed} for seed in "123"]
    ran = [subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True) for env in seeds]
    assert len({one.stdout for one in ran}) == 1, ran
    assert "algorithm:typed" in ran[0].stdout


@pytest.mark.parametrize("name", ["plugin", "helper", "deeper", "sibling", "whole"])
def test_an_edit_of_any_of_them_is_noticed(package, name):
    before = syntax_digest(package().values())
    assert syntax_digest(package(**{name: FILES[name] + "edited = 'and longer than before'\n"}).values()) != before


def test_an_edit_of_another_plugin_is_not(package):
    before = package()
    assert package(stranger="z = 5  # edited, and longer than before\n") == before


def test_what_a_plugin_from_outside_takes_of_our_plugins_is_covered_and_our_engine_is_not(package):
    taken = "import fedspan\nfrom fedspan.benchmark.tree import root\nfrom fedspan.methods.algorithms import fedadam\n"
    found = package(plugin=taken)
    assert {"fedspan.methods.algorithms.fedadam", "fedspan.methods.adaptive"} < set(found)
    assert not [name for name in found if name == "fedspan" or name.startswith("fedspan.benchmark")]


def test_an_edit_after_the_import_is_not_the_source_of_what_runs(package, tmp_path):
    before = package()
    (tmp_path / "made_up_plugins" / "helper.py").write_text("half typed(")
    sources_behind.cache_clear()
    assert sources_behind("made_up_plugins.plugin") == before


def test_a_module_that_is_reloaded_in_place_has_its_new_source(package, tmp_path):
    before = package()
    helper = tmp_path / "made_up_plugins" / "helper.py"
    helper.write_text(f"{helper.read_text()}more = 1\n")
    importlib.reload(sys.modules["made_up_plugins.helper"])
    sources_behind.cache_clear()
    after = sources_behind("made_up_plugins.plugin")
    assert {name for name in before if before[name] != after[name]} == {"made_up_plugins.helper"}


def test_a_module_that_must_not_be_imported_has_no_source(package, monkeypatch):
    before = package()
    monkeypatch.setitem(sys.modules, "made_up_plugins.absent", None)
    keep_sources({"made_up_plugins"})
    assert sources_behind("made_up_plugins.plugin") == before


def test_an_engine_in_the_same_package_as_a_plugin_is_not_behind_it(package, monkeypatch):
    monkeypatch.setattr(sources, "engine", SimpleNamespace(__name__="made_up_plugins.helper"))
    assert {"made_up_plugins.helper", "made_up_plugins.deeper"}.isdisjoint(package())


def test_helpers_of_our_own_plugins_are_covered(monkeypatch):
    cell = toy_cell(FedAdam(), SphereFed())
    digests = source_digests(cell)
    assert "fedspan.methods.adaptive" in sources_behind("fedspan.methods.algorithms.fedadam")
    assert "fedspan.methods.addons.ffc" in sources_behind("fedspan.methods.addons.spherefed")
    real = sources_behind

    def edited(name):
        return {
            module: text + "\nx = 1\n" * (module == "fedspan.methods.adaptive") for module, text in real(name).items()
        }

    monkeypatch.setattr(sources, "sources_behind", edited)
    assert changed(digests, source_digests(cell)) == ("algorithm:fedadam",)


# what of a source counts --------------------------------------------------------------------------------

METHOD = '''"""What it is."""

class Mine:
    """Who 2020."""

    mu: float = 0.1
    """Its unit."""

    def penalty(self, step):
        """Return it."""
        return self.mu * f"{step!r:>{3}}" if step else [1, *(2.0, True)]  # why
'''


@pytest.mark.parametrize(
    "reworded",
    [
        METHOD.replace("What it is.", "What it does."),
        METHOD.replace('    """Return it."""\n', ""),
        METHOD.replace("  # why", "  # because"),
        METHOD.replace("Its unit.", "Percent."),
        METHOD.replace("[1, *(2.0, True)]", "[\n1, *(2.00, True,)]"),
        METHOD.replace('"""', "'''"),
    ],
    ids=["docstring", "no docstring", "comment", "text beside a field", "layout", "quotes"],
)
def test_words_and_layout_change_no_digest(reworded):
    assert reworded != METHOD
    assert syntax_digest([reworded]) == syntax_digest([METHOD])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("0.1", "0.2"),
        ("2.0", "2"),
        ("True", "1"),
        ("float", "int"),
        ("self.mu *", "self.mu +"),
        ("step!r", "step!s"),
        (":>{3}", ":>{4}"),
        ("mu", "nu"),
        ("def penalty", "async def penalty"),
        ("if step else", "if not step else"),
        ("[1,", "[None,"),
        # what stands where remarks may stand
        ("mu: float", "mu: Annotated[int, log(1e-4, 1e-1)]"),
        ("mu: float", "mu: Other[float, 1]"),
        ("class Mine", "from mine import helper\n\nclass Mine"),
        ("class Mine", "title = 1\n\nclass Mine"),
        ("    mu:", "    title = other = 1\n    mu:"),
    ],
)
def test_every_change_of_code_changes_the_digest(before, after):
    assert syntax_digest([METHOD.replace(before, after)]) != syntax_digest([METHOD])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("mu: float", "mu: Annotated[float, log(1e-4, 1e-1)]"),
        ("class Mine", "from typing import Annotated\nfrom fedspan.benchmark.search import log\n\nclass Mine"),
        ("    mu:", "    title = 'Mine'\n    mu:"),
        ("    mu:", "    summary = 'short'\n    papers = ('doi:1',)\n    skew_field = 'mu'\n    mu:"),
        ("    mu:", "    server_sees = 'all'\n    same_shapes = {'mu': {1.0: 0.0}}\n    mu:"),
    ],
)
def test_search_spaces_names_for_readers_and_what_costs_alone_read_change_no_digest(before, after):
    assert syntax_digest([METHOD.replace(before, after)]) == syntax_digest([METHOD])


def test_where_one_source_ends_and_the_next_begins_counts():
    assert syntax_digest(["a = 1\nb = 2\n"]) != syntax_digest(["a = 1\n", "b = 2\n"])


# the engine -----------------------------------------------------------------------------------------------

NUMBERS = {
    "__init__", "component", "contract", "discovery", "download", "errors", "fields", "fleet", "head", "local_images",
    "method", "net", "numerics", "protocol", "registration", "registry", "returned", "rng", "sgd", "task", "tree",
    "data", "training", "running", "running.cell_run", "spec", "spec.cell", "spec.diagnostics", "records",
    "records.checkpoint",
}  # fmt: skip


def modules():
    root = sources._engine_root()
    for path in root.rglob("*.py"):
        yield ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"), path


def test_of_every_module_of_the_engine_it_is_said_whether_a_number_can_depend_on_it():
    """A new module belongs into `sources.WITHOUT_NUMBERS` or into `NUMBERS` above; where in doubt into the latter."""
    counted = {name for name, path in modules() if not sources.without_numbers(path)}
    rooms = {name for name in counted if name.startswith(("data.", "training."))}
    assert counted - rooms == NUMBERS
    there = {".".join(name.split(".")[:depth]) for name, _ in modules() for depth in (1, 2)}
    assert there >= sources.WITHOUT_NUMBERS


# where a record goes, when a cell ends, and what stands beside a field
KEPT = ("records.", "places", "running.signals", "search", "spec.settings")


def test_what_trains_does_not_import_what_has_no_numbers_but_to_keep_and_to_name_them():
    for _, path in modules():
        if not sources.without_numbers(path):
            text = path.read_text()
            wrong = [
                name
                for name in sources.WITHOUT_NUMBERS
                if not name.startswith(KEPT) and f"from fedspan.benchmark.{name} import" in text
            ]
            assert wrong == [], path


@pytest.fixture
def other_engine(tmp_path, monkeypatch):
    """Return a function that writes files of an engine and returns its digest."""
    monkeypatch.setattr(sources, "engine", SimpleNamespace(__file__=str(tmp_path / "engine" / "__init__.py")))

    def syntax_digest(**files):
        for name, text in files.items():
            path = tmp_path / "engine" / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".py").write_text(text)
        forget_engine()
        return engine_digest()

    def forget_engine():
        sources.forget()
        engine_digest.cache_clear()

    yield syntax_digest
    forget_engine()


def test_the_engine_is_one_digest_without_what_plans_starts_keeps_and_shows(other_engine):
    first = other_engine(rounds="1", executors__loop="2", report__page="3", cli__ui="4")
    assert other_engine(report__page="5", cli__ui="6") == first
    assert other_engine(rounds="1  # as it was") == first
    assert other_engine(executors__loop="7") != first


def test_what_a_file_of_plugins_imports_from_its_folder_is_behind_it_and_what_lies_deeper_is_not(tmp_path, monkeypatch):
    """The folder may hold an environment with all of torch."""
    for name, text in {
        "mine.py": "import beside_mine, deeper_mine\nfrom pack_beside import part\n",
        "beside_mine.py": "FACTOR = 1\n",
        "pack_beside/__init__.py": "z = 1\n",
        "pack_beside/part.py": "x = 1\n",
        "env/deeper_mine.py": "y = 1\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for folder in (tmp_path, tmp_path / "env"):
        monkeypatch.syspath_prepend(folder)
    module = discovery.import_file(tmp_path / "mine.py")
    try:
        behind = sources_behind(module.__name__)
        assert set(behind) == {module.__name__, "beside_mine", "pack_beside", "pack_beside.part"}
        assert behind["beside_mine"] == "FACTOR = 1\n"
    finally:
        discovery._imported.pop(module.__name__)
        for name in (module.__name__, "beside_mine", "deeper_mine", "pack_beside", "pack_beside.part"):
            sys.modules.pop(name, None)
        sources_behind.cache_clear()


# differences from a record --------------------------------------------------------------------------------

HERE = {"algorithm:a": f"{sources.FORM}1", "dataset:b": f"{sources.FORM}2"}


def test_a_record_of_the_same_sources_is_not_stale():
    assert changed(dict(HERE), HERE) == ()


def test_sources_that_differ_or_are_absent_are_named():
    assert changed({"algorithm:a": f"{sources.FORM}9"}, HERE) == ("algorithm:a", "dataset:b")


@pytest.mark.parametrize("recorded", [None, {}, [], "x", {"algorithm:a": "87edf040a465401f"}, {"algorithm:a": None}])
def test_without_digests_of_this_form_it_cannot_be_told(recorded):
    assert changed(recorded, HERE) is None


def test_a_record_of_an_engine_with_uncommitted_changes_is_not_of_the_current_sources(monkeypatch):
    cell, other = toy_cell(), f"{sources.FORM}0"
    changed_files = ["benchmark/training/local.py", "methods/mine.py"]
    made = {"sources": source_digests(cell), "engine": other, "uncommitted": changed_files}
    said = "made by other sources (benchmark/training/local.py with uncommitted changes)"
    for told in (made, code_provenance(made)):
        assert stale(told, cell) == said
        by = SimpleNamespace(sources=source_digests(cell), engine=engine_digest())
        assert stale(told, cell, [by]) == "", "a repetition proves it"
        by.engine = other
        assert stale(told, cell, [by]) == said, "one by the same changes does not"
    monkeypatch.setattr(sources, "engine_digest", lambda: other)
    assert stale(made, cell) == "", "the changes are here now"


@pytest.mark.parametrize("files", [None, [], ["methods/mine.py"]])
def test_tests_hold_a_committed_engine_to_its_numbers(files):
    cell = toy_cell()
    made = {"sources": source_digests(cell), "engine": f"{sources.FORM}0", "uncommitted": files}
    assert code_provenance(made) == {"sources": source_digests(cell)}
    assert stale(made, cell) == ""


# uncommitted sources ----------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Return a checkout that holds a plugin's module and an engine, all committed, and a cell of that plugin."""

    def git(*words):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(("git", *who, *words), cwd=tmp_path, check=True, capture_output=True)

    for name in ("made_up_plugin.py", "engine/rounds.py", "engine/cli/ui.py", "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    sources.forget()
    with monkeypatch.context() as made_up:
        engine = SimpleNamespace(__name__="none", __file__=str(tmp_path / "engine" / "__init__.py"))
        made_up.setattr(sources, "engine", engine)
        module = SimpleNamespace(__file__=str(tmp_path / "made_up_plugin.py"))
        made_up.setitem(sys.modules, "made_up_plugin", module)
        made_up.setattr(sources, "sources_behind", cache(lambda name: {"made_up_plugin": ""}))
        yield tmp_path
    sources.forget()


def test_committed_sources_are_not_listed(checkout):
    assert uncommitted(toy_cell()) == []


@pytest.mark.parametrize("name", ["made_up_plugin.py", "engine/rounds.py"])
def test_a_changed_source_is_listed_by_its_path(checkout, name):
    (checkout / name).write_text("x = 2\n")
    assert uncommitted(toy_cell()) == [name]


def test_a_source_that_git_does_not_know_is_listed(checkout):
    (checkout / "engine" / "new.py").write_text("x = 1\n")
    assert uncommitted(toy_cell()) == ["engine/new.py"]


@pytest.mark.parametrize("name", ["engine/cli/ui.py", "README.md"])
def test_what_no_number_depends_on_is_not_listed(checkout, name):
    (checkout / name).write_text("x = 2\n")
    assert uncommitted(toy_cell()) == []


def test_without_a_checkout_nothing_can_be_said(checkout):
    (checkout / ".git").rename(checkout / "no longer")
    assert uncommitted(toy_cell()) is None


def test_a_checkout_that_is_made_between_runs_of_a_notebook_is_found(checkout):
    (checkout / ".git").rename(checkout / "not yet")
    assert uncommitted(toy_cell()) is None
    (checkout / "not yet").rename(checkout / ".git")
    sources.forget()
    assert uncommitted(toy_cell()) == []
