"""No module is too long to be read in one go, no function too long to be seen at once; the engine knows no plugin."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedspan.benchmark.registry import KINDS, plugins

ROOT = Path(__file__).parents[1]
ROOMS = ("benchmark", "methods", "tasks")
MODULE_LINES = 400
FUNCTION_LINES = 50


def sources() -> Iterator[tuple[str, str]]:
    """Yield path, from the top, and source of every module."""
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def long_functions(source: str) -> Iterator[tuple[str, int]]:
    """Yield name and lines of each function, from its ``def`` on, that has more than `FUNCTION_LINES`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield node.name, lines


def test_every_module_has_at_most_400_lines():
    lengths = {path: len(source.splitlines()) for path, source in sources()}
    assert len(lengths) > 100, "the rooms were not found"
    assert {path: lines for path, lines in lengths.items() if lines > MODULE_LINES} == {}


def test_every_function_has_at_most_50_lines():
    found = {f"{path}: {name}": lines for path, source in sources() for name, lines in long_functions(source)}
    assert found == {}


@pytest.mark.parametrize(("lines", "found"), [(50, []), (51, [("body", 51)])])
def test_a_function_is_measured_with_its_signature_and_its_docstring(lines, found):
    source = 'def body(\n    x,\n):\n    """Text."""\n' + "    x += 1\n" * (lines - 4)
    assert list(long_functions(source)) == found


def test_functions_inside_classes_and_other_functions_are_measured_too():
    inner = "        def inner():\n" + "            pass\n" * FUNCTION_LINES
    names = [name for name, _ in long_functions(f"class Outer:\n    async def method():\n{inner}")]
    assert sorted(names) == ["inner", "method"]


def test_the_engine_names_no_plugin():
    """The command line alone has examples; `domain` and `digits` are words of the field too."""
    names = {name for kind in KINDS for name in plugins(kind)} - {"domain", "digits"}
    named = {
        f"{path}:{node.lineno}: {node.value}"
        for path, source in sources()
        if path.startswith("benchmark/") and not path.startswith("benchmark/cli/")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names
    }
    assert len(names) > 40, "the plugins were not found"
    assert named == set()
