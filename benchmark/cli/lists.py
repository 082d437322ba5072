"""`fedspan list`: plugins, protocols and boards."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedspan.benchmark.cli.run import warn_of_broken_plugins
from fedspan.benchmark.component import disclosure
from fedspan.benchmark.errors import UserError, did_you_mean
from fedspan.benchmark.fields import defaults_of
from fedspan.benchmark.protocol import Protocol
from fedspan.benchmark.registry import KINDS, plugins
from fedspan.benchmark.running.compat import Compatibility
from fedspan.benchmark.search import Space, spaces_of, untold
from fedspan.benchmark.spec.board import load_board
from fedspan.benchmark.spec.compose import options, resolve
from fedspan.benchmark.spec.overrides import settings_of
from fedspan.benchmark.spec.presets import preset, yaml_files


def show(arguments: argparse.Namespace) -> int:
    """List plugins, protocols and boards, or the compatibility of add-ons and algorithms."""
    words = arguments.words
    if arguments.compat:
        return _show_compatibility(words)
    if "methods" in words:
        return _show_spaces([word for word in words if word != "methods"])
    names = {**KINDS, "protocol": "protocols", "board": "boards"}
    resolve(settings_of(word for word in words if "=" in word))  # imports the files of plugins=
    wanted = [word for word in words if "=" not in word] or list(names.values())
    for word in wanted:
        if word not in names.values():
            raise UserError(f"cannot list '{word}'{did_you_mean(word, names.values())}")
    console = Console()
    for word in wanted:
        table = Table(box=box.SIMPLE_HEAD, title=word, title_justify="left", title_style="bold")
        for heading in ("name", "settings", "description"):
            table.add_column(heading, overflow="fold", no_wrap=heading == "name")
        for row in _listed(word):
            table.add_row(*(Text(cell) for cell in row))
        console.print(table)
    warn_of_broken_plugins()
    return 0


def _show_spaces(names: Sequence[str]) -> int:
    """Print over what the settings of methods are tuned; of all methods, or of those named."""
    known = {name: cls for kind in ("algorithm", "addon") for name, cls in plugins(kind).items()}
    for name in names:
        if name not in known:
            raise UserError(f"cannot list the method '{name}'{did_you_mean(name, known)}")
    table = Table(box=box.SIMPLE_HEAD, title="what is tuned", title_justify="left", title_style="bold")
    for heading in ("method", "setting", "default", "search space", "source or reason"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("method", "setting"))
    untuned: list[str] = []
    parts: list[tuple[str, str, type[Any]]] = [("all", "protocol", Protocol)]
    for name in names or known:
        parts.append((name, f"addon.{name}" if known[name].kind == "addon" else "algorithm", known[name]))
    for name, prefix, cls in parts:
        for field, space in spaces_of(cls).items():
            about = space.source if isinstance(space, Space) else space.why
            row = (name, f"{prefix}.{field}", str(defaults_of(cls)[field]), str(space), about)
            table.add_row(*map(Text, row))
        untuned += [f"{name}'s {prefix}.{field}" for field in untold(cls) if cls is not Protocol]
    console = Console()
    console.print(table)
    if untuned:
        said = f"without a search space, so never tuned: {', '.join(untuned)} (docs/new-method.md says how to add one)"
        console.print(said, markup=False, highlight=False, soft_wrap=True)
    warn_of_broken_plugins()
    return 0


def _show_compatibility(words: Sequence[str]) -> int:
    settings = [word for word in words if word != "methods"]
    if "methods" not in words or any("=" not in word for word in settings):
        raise UserError("write: fedspan list methods --compat [name=value ...]")
    found = Compatibility.of(resolve(settings_of(settings)))
    table = Table(box=box.SIMPLE_HEAD, title=found.title, title_justify="left", title_style="bold")
    table.add_column("algorithm", no_wrap=True, vertical="bottom")
    for addon in found.addons:
        table.add_column("\n".join(addon), justify="right", no_wrap=True, vertical="bottom")
    for algorithm in found.algorithms:
        table.add_row(algorithm, *(found.mark(algorithm, addon) for addon in found.addons))
    console = Console()
    console.print(table)
    for name, more in found.disclosures.items():
        console.print(f"{name}: {more}", markup=False, highlight=False, soft_wrap=True)
    for number, reason in enumerate(found.reasons, 1):
        console.print(f"{number}: {reason}", markup=False, highlight=False, soft_wrap=True)
    warn_of_broken_plugins()
    return 0


def _listed(plural: str) -> Iterator[tuple[str, str, str]]:
    if plural == "protocols":
        presets = options("protocol")
        for name, values in presets.items():
            changed = {k: v for k, v in values.items() if name == "default" or v != presets["default"][k]}
            rules = len(preset(name).tuned)
            more = f"; {rules} settings tuned for methods (run --cfg job shows them)" if rules else ""
            yield name, _settings(changed) + more, " ".join(preset(name).description.split())
    elif plural == "boards":
        for name in sorted(yaml_files("boards")):
            try:
                board = load_board(name)
                yield name, f"{len(board.expand())} cells", board.title
            except UserError as error:
                yield name, "cannot be read", str(error)
    else:
        for name, cls in plugins(next(kind for kind, many in KINDS.items() if many == plural)).items():
            about = (cls.__doc__ or "").strip().splitlines()[0]
            more = disclosure(cls)
            yield name, _settings(defaults_of(cls)), f"{about} ({more})" if more else about


def _settings(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items())
