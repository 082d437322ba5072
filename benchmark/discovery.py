"""Discovery of plugins in folders of this package, installed distributions, and files named by the user."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
import traceback
import types
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path

from fedspan.benchmark.errors import UserError

ENTRY_POINT_GROUP = "fedspan.plugins"
VARIABLE = "FEDSPAN_PLUGINS"  # files or folders, separated as in PATH
REGISTERED = re.compile(r"^@(?:\w+\.)?[a-z]+\(\s*[\"'](\w+)[\"']", re.MULTILINE)  # e.g. @algorithm("fedprox")


_imported: dict[str, tuple[Path, bytes]] = {}  # module name -> path and content read by `import_file`
_sources: dict[str, tuple[types.ModuleType, ModuleSpec | None, str]] = {}  # by name; the text when first read


@dataclass(frozen=True)
class Source:
    """A module that provides plugins: its label in messages, its loader, and its file if known."""

    label: str
    load: Callable[[], object]
    path: Path | None = None
    name: str = ""

    @property
    def names(self) -> frozenset[str]:
        """The names of its plugins as found in its source text; the module need not be importable."""
        try:
            text = self.path.read_text(encoding="utf-8") if self.path else ""
        except (OSError, UnicodeDecodeError):
            text = ""
        return frozenset((*REGISTERED.findall(text), self.name or (self.path.stem if self.path else "")))


@dataclass(frozen=True)
class Broken:
    """A source that cannot be imported: the `names` of its plugins, and its error as one line of `text`.

    `path` is its file. `claims` is the (kind, name) of an existing plugin that the file also registers.
    """

    names: frozenset[str]
    text: str
    path: Path | None = None
    claims: tuple[str, str] | None = None


class Clash(UserError):
    """Two plugins of one kind and name."""

    def __init__(self, claims: tuple[str, str], message: str) -> None:
        super().__init__(message)
        self.claims = claims


def broken(source: Source, error: BaseException) -> Broken:
    """Return a source's import error as one line, with file and line number."""
    path = Path(os.path.realpath(source.path)) if source.path else None
    place = "" if isinstance(error, UserError) else f" ({_place(error, path)})"
    claims = error.claims if isinstance(error, Clash) and path else None
    return Broken(source.names, f"{source.label}: {_one_line(error)}{place}{_neighbour(error, path)}", path, claims)


def everywhere(packages: Iterable[str]) -> Iterator[Source]:
    """Yield the modules of `packages`, then installed entry points, then the files of `FEDSPAN_PLUGINS`."""
    for name in packages:
        yield from _modules(name)
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        label = f"plugin '{entry.name}' could not be loaded: {entry.value}"
        yield Source(label, entry.load, name=entry.name)
    for given in os.environ.get(VARIABLE, "").split(os.pathsep):
        if given:
            yield from _named(given)


def _modules(package_name: str) -> Iterator[Source]:
    package = importlib.import_module(package_name)
    # A broken package is reported by its own import; `onerror` keeps the walk from raising for it again.
    for module in pkgutil.walk_packages(package.__path__, f"{package_name}.", onerror=lambda name: None):
        folder = getattr(module.module_finder, "path", None)
        path = Path(folder, f"{module.name.rpartition('.')[2]}.py") if folder and not module.ispkg else None
        yield Source(f"{module.name} cannot be imported", partial(importlib.import_module, module.name), path)


def _named(given: str) -> Iterator[Source]:
    try:
        yield from files(given)
    except UserError as error:
        yield Source(VARIABLE, partial(_refuse, error), Path(given))


def _refuse(error: UserError) -> None:
    raise error


def files(given: str) -> list[Source]:
    """Return the plugin file at a path, or the files in a folder; raise `UserError` if there is none."""
    path = Path(os.path.expanduser(given)).absolute()  # unlike those of `Path`, these functions never raise
    paths = sorted(filter(_is_plugin, path.glob("*.py"))) if os.path.isdir(path) else [path]
    if not os.path.exists(path):
        raise UserError(f"the plugin file {given} does not exist (seen from {Path.cwd()})")
    if not paths or any(file.suffix != ".py" for file in paths):
        raise UserError(f"{given} must be a Python file (.py), or a folder that holds some")
    return [Source(f"{file} cannot be imported", partial(import_file, file), file) for file in paths]


def _is_plugin(file: Path) -> bool:
    """Return whether a file in a folder of plugins is one: not hidden, private, or a test beside it."""
    return file.name[0] not in "._" and not file.name.startswith("test_") and file.name != "conftest.py"


def import_file(path: Path) -> object:
    """Import a file with any name, in any folder, as a module of its own; once per process."""
    path = Path(os.path.realpath(path))
    where = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    name = f"{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}_{where}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path
    sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        source = path.read_bytes()
        _imported[name] = path, source
        exec(compile(source, path, "exec"), vars(sys.modules[name]))  # no bytecode cache: it misses edits within 1 s
    except BaseException:
        del sys.modules[name]
        raise
    return sys.modules[name]


def forget_edited() -> list[Path]:
    """Forget modules imported by `import_file` whose files were edited or deleted since; return their paths."""
    edited = [name for name, (path, source) in _imported.items() if not path.is_file() or path.read_bytes() != source]
    for name in edited:
        sys.modules.pop(name, None)
    return [_imported.pop(name)[0] for name in edited]


def folder_of(name: str) -> Path | None:
    """Return the folder of a module that `import_file` imported; None for any other module."""
    return _imported[name][0].parent if name in _imported else None


def imported() -> Iterator[types.ModuleType]:
    """Yield the modules of the files that `import_file` imported."""
    yield from (sys.modules[name] for name in _imported if name in sys.modules)


def keep_sources(packages: Collection[str]) -> None:
    """Store the sources of all loaded modules of these top-level packages before anybody edits their files.

    The engine has no plugins and is left out.
    """
    for name, module in list(sys.modules.items()):
        if not isinstance(module, types.ModuleType):
            continue  # None stands for one that must not be imported
        if name.partition(".")[0] in packages and not name.startswith(str(__package__)):
            with contextlib.suppress(OSError, TypeError):
                source_of(module)


def source_of(module: types.ModuleType) -> str:
    """Return a module's source as first read, since later edits do not run.

    Raises `OSError` or `TypeError` if there is none.
    """
    known, spec, text = _sources.get(module.__name__, (None, None, ""))
    if known is not module or spec is not module.__spec__:  # a module that is reloaded in place gets a new spec
        text = inspect.getsource(module)
        _sources[module.__name__] = module, module.__spec__, text
    return text


def where(packages: Iterable[str], given: Iterable[str]) -> str:
    """Return a sentence on where plugins are looked for; `given` are the files of the setting ``plugins``."""
    named = ", ".join([*given, *filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))])
    return (
        f"Plugins are looked for in {', '.join(packages)}, installed distributions, "
        f"and files named by plugins= or {VARIABLE} ({named or 'none'})"
    )


def _one_line(error: BaseException) -> str:
    text = str(error.msg if isinstance(error, SyntaxError) else error)
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return kind + " ".join(text.split())


def _neighbour(error: BaseException, path: Path | None) -> str:
    """Return a hint if a plugin file imports a module beside it, whose source no record would name."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if not (path and name and any(path.with_name(module).exists() for module in (f"{name}.py", name))):
        return ""
    return f"; '{name}' beside it cannot be imported: a plugin is a single file; merge both, or install '{name}'"


def _place(error: BaseException, path: Path | None) -> str:
    """Return file and line of an error: the last frame in the file at `path`, if there is one."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    [frame] = [one for one in frames if path and os.path.realpath(one.filename) == str(path)][-1:] or frames[-1:]
    return f"{frame.filename}, line {frame.lineno}"
