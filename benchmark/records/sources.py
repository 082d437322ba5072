"""Digests of source code: they change with code that can change a number, not with comments or docstrings."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import inspect
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any, Protocol

import fedspan.benchmark as engine
from fedspan.benchmark.discovery import folder_of, source_of
from fedspan.benchmark.errors import plain
from fedspan.benchmark.registration import FOR_READERS
from fedspan.benchmark.spec.cell import Cell

# Packages and modules of the engine that no number depends on: they plan, start, store, send and show cells.
WITHOUT_NUMBERS = frozenset(
    (
        "cli", "mirror", "notebook", "report", "bibliography", "names", "patience", "places", "search",
        "running.compat", "running.estimate", "running.grid", "running.hydra_jobs", "running.job", "running.launchers",
        "running.leases", "running.progress", "running.repetition", "running.retry", "running.sharing",
        "running.signals", "running.summary",
        "spec.board", "spec.compose", "spec.freezing", "spec.overrides", "spec.plan", "spec.presets", "spec.rebuild",
        "spec.settings", "spec.shown", "spec.studies", "spec.tuning", "spec.yaml_text",
        "records.atomic", "records.exchange", "records.index", "records.model", "records.provenance", "records.record",
        "records.results", "records.selection", "records.sources", "records.validation", "records.verification",
        "data.download", "data.shares", "training.costs",
    )
)  # fmt: skip
REMEDY = "'fedspan verify' checks their numbers, fresh=true recomputes them"
FORM = "syntax:"  # prefix of current digests; digests without it covered comments too
SILENT = ("ctx", "kind", "type_comment")  # syntax fields that repeat other fields
# Class attributes that no result depends on: those shown on pages, and those that make costs quick to compute.
REMARKS = frozenset((*FOR_READERS, "skew_field", "same_shapes", "server_sees"))
REMARK_MODULES = frozenset(("typing", "fedspan.benchmark.search"))  # imported for annotations


def source_digests(cell: Cell) -> dict[str, str]:
    """Return a digest of the source of each plugin of a cell, by ``kind:name``.

    It covers the plugin's module and all modules that it imports from the plugin's own package or from ours. A class
    typed into an interpreter or a notebook has no source: then it covers the code of the class's functions.
    """
    found = {}
    for part in cell.plugins:
        sources = sources_behind(type(part).__module__)
        found[f"{part.kind}:{part.name}"] = syntax_digest(sources.values() or [f"code = {_code_of(type(part))!r}"])
    return found


def _code_of(what: Any) -> Any:
    """Return the code that Python runs for a class, a function or a constant, without file names and line numbers.

    A class counts by its attributes and its bases from the same module. The order of a set depends on the process, so
    its members are sorted; other objects count by their type only.
    """
    if isinstance(what, type):
        members = {
            name: _code_of(value)
            for name, value in sorted(vars(what).items())
            if name not in REMARKS and (inspect.isfunction(value) or not name.startswith("__"))
        }
        return members, [_code_of(base) for base in what.__bases__ if base.__module__ == what.__module__]
    if isinstance(what, (staticmethod, classmethod)):
        return _code_of(what.__func__)
    if isinstance(what, property):
        return [_code_of(part) for part in (what.fget, what.fset, what.fdel)]
    if inspect.isfunction(what):
        return _code_of(what.__code__), _code_of(what.__defaults__), _code_of(what.__kwdefaults__)
    if isinstance(what, CodeType):
        return (what.co_code, what.co_names, what.co_varnames, [_code_of(one) for one in what.co_consts])
    if isinstance(what, (set, frozenset)):
        return sorted(repr(_code_of(one)) for one in what)
    if isinstance(what, (tuple, list)):
        return [_code_of(one) for one in what]
    if isinstance(what, dict):
        return sorted((repr(_code_of(key)), repr(_code_of(value))) for key, value in what.items())
    return what if isinstance(what, (str, bytes, int, float, complex, type(None))) else type(what).__qualname__


def changed(recorded: Any, here: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the names of sources that differ between a record and this machine.

    None if that is unknown: the record has no digests, or those of an earlier form, which covered comments.
    """
    if not isinstance(recorded, Mapping) or not all(str(digest).startswith(FORM) for digest in recorded.values()):
        return None
    return tuple(name for name in here if recorded.get(name) != here[name]) if recorded else None


class Code(Protocol):
    """The code that computed something: digests of its plugins' sources, by ``kind:name``, and of the engine."""

    @property
    def sources(self) -> Mapping[str, str]: ...
    @property
    def engine(self) -> str: ...


def stale(made: Mapping[str, Any], cell: Cell, repeated_by: Iterable[Code] = ()) -> str:
    """Return a remark if a cell's record was made by other or by unknown sources, else an empty string.

    `made` is its provenance, or that part of it in `code_provenance`. The sources of the cell's plugins are compared,
    and the engine's only if it had uncommitted changes: tests pin the numbers of committed engines. `repeated_by` is
    the code of identical repetitions. A repetition by these sources, and by this engine if the record's was
    uncommitted, proves that they give the record's numbers.
    """
    here = source_digests(cell)
    edited = changed(made.get("sources"), here)
    files = [] if made.get("engine") == engine_digest() else uncommitted_engine_files(made)
    if any(changed(by.sources, here) == () and (not files or by.engine == engine_digest()) for by in repeated_by):
        return ""
    if edited is None:
        return "made by unknown sources (their digests are missing or of an older form)"
    if files:
        edited = (*edited, *(f"{path} with uncommitted changes" for path in files))
    return f"made by other sources ({', '.join(edited)})" if edited else ""


def code_provenance(made: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a record's provenance that `stale` reads: the engine only if it had uncommitted changes."""
    found = {"sources": made.get("sources", {})}
    if files := uncommitted_engine_files(made):
        found |= {"uncommitted": files, "engine": made.get("engine")}
    return found


def uncommitted_engine_files(made: Mapping[str, Any]) -> list[str]:
    """Return the files of the engine that had uncommitted changes when `made` was."""
    return [path for path in made.get("uncommitted") or () if str(path).startswith(f"{_engine_root().name}/")]


@cache
def engine_digest() -> str:
    """Return a digest of the engine's source, without the modules that no number depends on."""
    return syntax_digest(path.read_text(encoding="utf-8") for path in engine_files())


@cache
def engine_files() -> tuple[Path, ...]:
    """Return the files of the engine that a number can depend on, sorted by name."""
    return tuple(sorted(path for path in _engine_root().rglob("*.py") if not without_numbers(path)))


def without_numbers(path: Path) -> bool:
    """Return whether no number depends on a file of the engine."""
    parts = path.relative_to(_engine_root()).with_suffix("").parts
    return any(".".join(parts[:depth]) in WITHOUT_NUMBERS for depth in range(1, len(parts) + 1))


def _engine_root() -> Path:
    return Path(str(engine.__file__)).parent


def syntax_digest(sources: Iterable[str]) -> str:
    """Return a short sha256 over the syntax of sources."""
    return _cached_syntax_digest(tuple(sources))


@cache
def _cached_syntax_digest(sources: tuple[str, ...]) -> str:
    """Return the digest of sources, cached: thousands of records are compared with the sources of a few plugins."""
    return FORM + hashlib.sha256("\n".join(_syntax(source) for source in sources).encode()).hexdigest()[:16]


@cache
def _syntax(source: str) -> str:
    """Return the syntax of a source as text, the same for every version of Python.

    `ast.dump` differs between versions: newer ones know more fields, and leave empty ones out.
    """
    return repr(_form(_parsed(source)))


def _parsed(source: str) -> ast.Module:
    """Parse a source, retrying if other code parsed meanwhile: CPython before 3.11.9 then raises (gh-106905)."""
    for _ in range(9):
        with contextlib.suppress(SystemError):
            return ast.parse(source)
    return ast.parse(source)


def _form(node: Any) -> Any:
    kind = type(node)
    if kind is list:
        return [_form(item) for item in node if not _is_remark(item)]
    if not issubclass(kind, ast.AST):
        return node
    if kind is ast.Subscript and type(node.value) is ast.Name and node.value.id == "Annotated":
        return _form(node.slice.elts[0])  # the type; the rest is a search space
    form = [kind.__name__]
    for name in kind._fields:
        value = getattr(node, name, None)
        if kind is ast.ClassDef and name == "body":
            value = [item for item in node.body if not _names_a_remark(item)]
        if value is not None and value != [] and name not in SILENT:
            form += (name, _form(value))
    return form


def _is_remark(node: Any) -> bool:
    """Return whether a statement is a bare string, such as a docstring, or an import for annotations."""
    if type(node) is ast.ImportFrom:
        return node.module in REMARK_MODULES
    return type(node) is ast.Expr and type(node.value) is ast.Constant and type(node.value.value) is str


def _names_a_remark(node: ast.stmt) -> bool:
    """Return whether a statement of a class only sets attributes on which no result depends."""
    return type(node) is ast.Assign and all(type(name) is ast.Name and name.id in REMARKS for name in node.targets)


@cache
def sources_behind(name: str) -> dict[str, str]:
    """Return the sources, by name, of a loaded module and of what it imports from its own top-level package or ours.

    A file of `plugins` has no package: what it imports from its folder counts. Sources are as imported. The engine has
    its own digest and is always left out.
    """
    beside = folder_of(name)
    packages = (f"{name.partition('.')[0]}.", f"{engine.__name__.rpartition('.')[0]}.")
    found, waiting = dict[str, str](), [name]
    while waiting:
        module = waiting.pop()
        if module in found or module not in sys.modules or _of_engine(module):
            continue
        if not f"{module}.".startswith(packages) and (beside is None or _folder(module) != beside):
            continue
        try:
            source = source_of(sys.modules[module])
        except (OSError, TypeError):  # a class typed into an interpreter has no source
            continue
        if not source.strip():  # an empty file, whose source some versions of Python give as a line
            continue
        found[module] = source
        parents = module.split(".") if hasattr(sys.modules[module], "__path__") else module.split(".")[:-1]
        for node in ast.walk(_parsed(found[module])):
            if isinstance(node, ast.ImportFrom):
                parts = parents[: len(parents) - node.level + 1] if node.level else []
                origin = ".".join([*parts, *([node.module] if node.module else [])])
                waiting += [origin, *(f"{origin}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                waiting += [alias.name for alias in node.names]
    return dict(sorted(found.items()))


def _folder(module: str) -> Path | None:
    """Return the folder in which a loaded module's file, or its top-level package, lies; None without a file."""
    top = sys.modules.get(module.partition(".")[0])
    file = getattr(top, "__file__", None)
    return Path(file).resolve().parents[1 if hasattr(top, "__path__") else 0] if file else None


def _of_engine(module: str) -> bool:
    package = engine.__name__.rpartition(".")[0]  # its __init__ computes nothing, and holds the version
    return module in (engine.__name__, package) or module.startswith(f"{engine.__name__}.")


def uncommitted(cell: Cell) -> list[str] | None:
    """Return the files behind a cell's numbers that are untracked or modified in git; None if there is no checkout.

    Paths are relative to their checkout. A plugin of an installed distribution has no checkout and is not listed.
    """
    modules = sorted({module for part in cell.plugins for module in sources_behind(type(part).__module__)})
    files = [Path(path) for module in modules if (path := getattr(sys.modules.get(module), "__file__", None))]
    by_root: dict[Path, list[str]] = {}
    for path in (*files, *engine_files()):
        if (place := _in_checkout(path)) is not None:
            root, name = place
            by_root.setdefault(root, []).append(name)
    found = [_uncommitted(root, tuple(sorted(set(paths)))) for root, paths in by_root.items()]
    told = [paths for paths in found if paths is not None]
    return sorted(plain(path) for paths in told for path in paths) if told else None


def forget() -> None:
    """Read files and git again from now on."""
    for cached in (sources_behind, engine_files, _in_checkout, _uncommitted):
        cached.cache_clear()


@cache
def _in_checkout(path: Path) -> tuple[Path, str] | None:
    """Return the git checkout of a file and its path there; None if it lies in none."""
    path = path.resolve()
    root = next((folder for folder in path.parents if (folder / ".git").exists()), None)
    return None if root is None else (root, str(path.relative_to(root)))


@cache
def _uncommitted(root: Path, paths: tuple[str, ...]) -> tuple[str, ...] | None:
    command = ["git", "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--", *paths]
    try:
        said = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return tuple(line[3:] for line in said.split("\0") if line)
