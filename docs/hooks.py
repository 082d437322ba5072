"""Generator of docs/hooks.md: the classes that plugins subclass or receive, from their docstrings.

With --check it compares the page with the docstrings, and writes nothing.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from fedspan.benchmark import component, download, fleet, net, protocol, registry, task

PAGE = Path(__file__).with_name("hooks.md")
HEADING = re.compile(r"\s*# ([\w ]+) -{10,}")  # comments like this divide a class into parts
CHAPTERS: dict[str, tuple[type, ...]] = {
    "Methods": (
        component.Component,
        component.Setting,
        protocol.Protocol,
        component.Step,
        component.Local,
        download.Download,
        component.Aggregate,
        component.Wire,
    ),
    "Datasets, partitions, models": (task.Dataset, task.Partition, task.Model),
    "Fleets": (fleet.Fleet, fleet.Work, fleet.Draws, fleet.Turn),
    "What they return": (task.Data, task.Images, task.Extent, task.Split, net.Net),
    "Every plugin": (registry.Plugin,),
}
HEAD = """# The plugin interface

Every class that a plugin subclasses or is handed, with its hooks, from the docstrings. `python docs/hooks.py` writes
this page; `nox -s lint` fails when it is out of date. [new-method.md](new-method.md) explains how hooks combine.
"""


def page() -> str:
    """Return the page as Markdown."""
    parts = [HEAD]
    for title, classes in CHAPTERS.items():
        parts += [f"## {title}\n", *("\n".join(chapter(cls)) for cls in classes)]
    return "\n".join(parts)


def chapter(cls: type) -> Iterator[str]:
    """Yield the lines about a class: its docstring, its fields, then its documented public methods."""
    source = textwrap.dedent(inspect.getsource(cls))
    [tree] = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    lines = source.splitlines()
    yield f"### `{cls.__name__}` (`{cls.__module__}`)\n"
    yield f"{markdown(tree)}\n"
    if fields := [lines[node.lineno - 1].strip() for node in tree.body if isinstance(node, ast.AnnAssign)]:
        yield "\n".join(["```python", *fields, "```\n"])
    headings = {number: found[1] for number, line in enumerate(lines, 1) if (found := HEADING.fullmatch(line))}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and ast.get_docstring(node):
            for number in [number for number in headings if number < node.lineno]:
                yield f"#### {headings.pop(number).capitalize()}\n"
            yield f"* `{signature(node)}`\n"
            yield textwrap.indent(markdown(node), "  ") + "\n"


def signature(node: ast.FunctionDef) -> str:
    """Return a method's signature without `self`, or a property's name and type."""
    words = [ast.unparse(decorator) for decorator in node.decorator_list]
    result = f"-> {ast.unparse(node.returns)}" if node.returns else ""
    if "property" in words:
        return f"{node.name} {result}"
    arguments = ast.unparse(node.args).removeprefix("self").removeprefix(", ")
    return f"{node.name}({arguments}) {result}"


def markdown(node: ast.ClassDef | ast.FunctionDef) -> str:
    """Return a docstring as Markdown, where code has single backticks."""
    return (ast.get_docstring(node) or "").replace("``", "`")


def main() -> int:
    """Write the page, or with --check return 1 if it is out of date."""
    if "--check" not in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        print("docs/hooks.md is not what the docstrings say; run: python docs/hooks.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
