import ast
import builtins
import importlib
import inspect
import re
import shlex
import shutil
import subprocess
import sys
import tomllib

import pytest

from fedspan.benchmark import registry
from fedspan.benchmark.cli.new import SKELETONS, create
from fedspan.benchmark.errors import UserError
from fedspan.benchmark.spec.board import read_board
from tests.cli.conftest import QUICK, finish, records

plugin_kinds = pytest.mark.parametrize("kind", [kind for kind in SKELETONS if kind != "board"])
kinds = pytest.mark.parametrize("kind", SKELETONS)


@pytest.fixture
def checkout(tmp_path):
    for skeleton in SKELETONS.values():
        (tmp_path / skeleton.folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / skeleton.test_folder).mkdir(parents=True, exist_ok=True)
    return tmp_path


@plugin_kinds
def test_a_plugin_and_its_test_are_python_named_after_it(checkout, kind):
    plugin, test = create(kind, "new_idea", checkout)
    assert [node.name for node in ast.walk(ast.parse(plugin.read_text())) if isinstance(node, ast.ClassDef)] == [
        "NewIdea"
    ]
    assert f'@{kind}("new_idea")' in plugin.read_text()
    assert "from fedspan." + ".".join(plugin.relative_to(checkout).with_suffix("").parts) in test.read_text()
    ast.parse(test.read_text())


@pytest.mark.parametrize("package", [None, "mine"])
def test_a_board_is_one_that_can_be_run_at_every_scale(checkout, package):
    [path] = create("board", "new_idea", checkout, package and checkout / package)
    board = read_board(path)
    assert path.name == "new_idea.yaml"
    assert [len(board.expand({"scale": [name]})) for name in ("own", "small", "smoke")] == [12, 12, 4]


@plugin_kinds
def test_a_package_holds_all_that_is_needed_to_run_test_and_install_it(tmp_path, kind):
    folder = tmp_path / "somewhere" / "mine"
    plugin, test, project = create(kind, "new_idea", tmp_path, folder)
    assert {path.parent for path in (plugin, test, project)} == {folder}
    assert plugin.name == "fedspan_new_idea.py"
    assert "from fedspan_new_idea import NewIdea" in test.read_text()
    entry = tomllib.loads(project.read_text())["project"]["entry-points"]["fedspan.plugins"]
    assert entry == {"new_idea": "fedspan_new_idea"}


def test_what_is_written_into_a_package_passes_its_own_tests(tmp_path):
    for kind in ("algorithm", "addon", "dataset", "partition", "fleet", "model"):
        create(kind, f"new_{kind}", tmp_path, tmp_path / kind)
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--basetemp", str(tmp_path / "tmp")]
    ran = subprocess.run([sys.executable, "-m", "pytest", *options], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout
    assert "7 passed" in ran.stdout


@pytest.fixture
def forgotten(monkeypatch):
    """Forget afterwards what is imported here."""
    registry.discover()
    monkeypatch.setattr(registry, "_plugins", {kind: dict(known) for kind, known in registry._plugins.items()})
    monkeypatch.setattr(registry, "_files", {})


@pytest.mark.usefixtures("forgotten")
def test_the_printed_commands_run_what_was_written(fedspan, here):
    ran = fedspan("new", "addon", "new_idea", "--package", "my folder")
    assert ran.status == 0
    first, second, third = ran.out.splitlines()
    assert first.endswith(
        "try it: fedspan run 'plugins=my folder/fedspan_new_idea.py' 'addons=[new_idea]' protocol.rounds=2"
    )
    assert second.endswith("fedspan test new_idea 'plugins=my folder/fedspan_new_idea.py'")
    assert third.endswith("install it: pip install './my folder'")
    words = shlex.split(first.split("try it: fedspan ")[1])
    quick = [word for word in QUICK if not word.startswith("protocol.rounds")]
    ran = fedspan(*words, *quick)
    assert (ran.status, ran.err) == (0, "")
    [record] = records().values()
    assert [one["name"] for one in record["spec"]["addons"]] == ["new_idea"]


@pytest.mark.usefixtures("forgotten")
def test_commands_can_be_pasted_whatever_the_folder_is_called(fedspan, here):
    ran = fedspan("new", "algorithm", "new_idea", "--package", "my (copy)")
    first, second, third = (line.split(": ", 1)[1] for line in ran.out.splitlines())
    quick = [word for word in QUICK if not word.startswith("protocol.rounds")]
    assert fedspan(*shlex.split(first)[1:], *quick).status == 0
    tests, contract = map(shlex.split, second.split("; "))
    assert tests == ["pytest", "my (copy)/test_fedspan_new_idea.py"]
    assert contract == ["fedspan", "test", "new_idea", "plugins='my (copy)/fedspan_new_idea.py'"]
    assert shlex.split(third)[-1] == "./my (copy)"
    board = fedspan("new", "board", "new_idea", "--package", "my (copy)").out.split(": ")[1]
    assert fedspan("plan", *shlex.split(board)[2:]).out.startswith("4 cells")


def hostile(kind):
    """Return names whose class would hide what the file or its test imports, or are keywords, or would be a test."""
    text = SKELETONS[kind].text + SKELETONS[kind].test
    lines = re.findall(r"^(?:from \S+ )?import (\w.*)$", text, re.MULTILINE)
    imported = {word for line in lines for word in re.split(r", | as ", line)}
    names = {re.sub(r"(?<!^)(?=[A-Z])", "_", word).lower() for word in imported}
    return [*sorted(names), "none", "exception", "ellipsis", "test", "test_it", "match", "trailing_", kind]


@plugin_kinds
@pytest.mark.usefixtures("forgotten")
def test_a_name_hides_nothing_that_the_file_or_its_test_uses(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    for name in dict.fromkeys(hostile(kind)):
        _, test, project = create(kind, name, tmp_path, tmp_path / name)
        monkeypatch.syspath_prepend(tmp_path / name)
        tests = importlib.import_module(test.stem)
        made = registry.plugins(kind)[name]
        assert getattr(tests, made.__name__) is made
        assert not hasattr(builtins, made.__name__)
        assert not made.__name__.startswith("Test"), "which pytest would collect"
        for one in [value for word, value in vars(tests).items() if word.startswith("test_")]:
            one(*(tmp_path for _ in inspect.signature(one).parameters))
        assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", tomllib.loads(project.read_text())["project"]["name"])


def test_a_plugin_of_a_hostile_name_passes_the_contract_tests(start, here):
    create("dataset", "images", here, here / "mine")
    ran = finish(start("test", "images", "plugins=mine/fedspan_images.py"))
    assert ran.status == 0, ran.out + ran.err
    assert "passed" in ran.out


@pytest.mark.parametrize("kind", ["algorithm", "addon"])
def test_a_method_is_at_most_fifteen_lines_of_code(checkout, kind):
    plugin, _ = create(kind, "new_idea", checkout)
    tree = ast.parse(plugin.read_text())
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef)) and ast.get_docstring(node):
            node.body = node.body[1:]
    code = {line for node in ast.walk(tree) if isinstance(node, ast.stmt) for line in (node.lineno, node.end_lineno)}
    assert 5 < len(code) <= 15


@plugin_kinds
@pytest.mark.skipif(shutil.which("ruff") is None, reason="ruff is not installed")
def test_what_is_written_is_formatted(checkout, kind):
    files = create(kind, "a_rather_long_name_for_it", checkout)
    command = ["ruff", "format", "--check", "--line-length", "120", "--isolated", *files]
    subprocess.run(command, check=True, capture_output=True)


@kinds
@pytest.mark.parametrize("package", [None, "mine"])
def test_nothing_is_overwritten(checkout, kind, package):
    *_, last = create(kind, "new_idea", checkout, package and checkout / package)
    last.write_text("mine")
    with pytest.raises(UserError, match="already exists"):
        create(kind, "new_idea", checkout, package and checkout / package)
    assert last.read_text() == "mine"


@pytest.mark.parametrize("name", ["New", "1st", "a-b", "", "a.b", "../a", "a b"])
def test_a_name_that_python_or_the_command_line_cannot_hold_is_refused(checkout, name):
    with pytest.raises(UserError, match="must be lower case letters, digits and _"):
        create("algorithm", name, checkout)


@pytest.mark.parametrize("name", ["class", "import", "none"])
def test_a_word_of_python_is_refused_if_it_cannot_name_a_module(checkout, name):
    if name == "none":
        create("algorithm", name, checkout)
        return
    with pytest.raises(UserError, match="is a Python keyword"):
        create("algorithm", name, checkout)


def test_a_folder_that_is_no_checkout_is_named(tmp_path):
    with pytest.raises(UserError, match="run this in a checkout of FedSpan"):
        create("algorithm", "new_idea", tmp_path)
    assert list(tmp_path.iterdir()) == []
