"""`fedspan list`: plugins, protocols and boards."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedspan.benchmark.bibliography import papers_of
from fedspan.benchmark.cli.accepted import accepted
from fedspan.benchmark.cli.run import warn_of_broken_plugins
from fedspan.benchmark.errors import UserError, did_you_mean
from fedspan.benchmark.fields import defaults_of
from fedspan.benchmark.method import disclosure
from fedspan.benchmark.names import counted_as, summary_of
from fedspan.benchmark.patience import doing
from fedspan.benchmark.protocol import Protocol
from fedspan.benchmark.registry import KINDS, Plugin, choice, plugins, prefix_of, why_unknown
from fedspan.benchmark.report.axes import text
from fedspan.benchmark.running.compat import Compatibility
from fedspan.benchmark.search import SettingDescription, Space, describe_settings, fields_without_space, spaces_of
from fedspan.benchmark.spec.board import load_board
from fedspan.benchmark.spec.compose import options, resolve
from fedspan.benchmark.spec.overrides import settings_of
from fedspan.benchmark.spec.presets import preset, yaml_files

PLURALS = {**KINDS, "protocol": "protocols", "board": "boards"}
METHODS = "methods"  # algorithms and add-ons
METHOD_KINDS = ("algorithm", "addon")
INSTEAD = {  # how to show a single protocol or board
    "protocol": "'fedspan run --cfg job protocol={}' shows its settings",
    "board": "'fedspan plan board={}' counts its cells",
}
NEXT = """\
fedspan list methods       what each is (or datasets, ...); --spaces: what is tuned; --compat: what combines
fedspan list methods NAME  its settings, and its papers with links"""


def show(arguments: argparse.Namespace) -> int:
    """List plugins, boards and protocols: all names, the summaries of a kind, or single plugins in full."""
    words = arguments.words
    if arguments.compat and arguments.spaces:
        raise UserError("--compat and --spaces are two lists; ask for one at a time")
    if arguments.compat:
        return _show_compatibility(words)
    accepted((word for word in words if "=" in word), ("plugins",), "lists show every plugin as it is")
    plain = [word for word in words if "=" not in word]
    if arguments.spaces:
        return _show_spaces([word for word in plain if word not in (METHODS, *PLURALS.values())])
    wanted = [word for word in plain if word in (*PLURALS.values(), METHODS)]
    named = [word for word in plain if word not in wanted]
    if named and not wanted:
        kinds_of = [METHODS if kind in METHOD_KINDS else KINDS[kind] for kind in KINDS if named[0] in plugins(kind)]
        near = did_you_mean(named[0], [*PLURALS.values(), METHODS])
        hint = f"; write: fedspan list {kinds_of[0]} {named[0]}" if kinds_of else near
        raise UserError(f"cannot list '{named[0]}'{hint}")
    kinds = [
        kind for kind, plural in PLURALS.items() if plural in wanted or (METHODS in wanted and kind in METHOD_KINDS)
    ]
    console = Console()
    if named:
        for cls in _found(named, kinds, wanted):
            _tell(cls, console)
    elif kinds:
        for kind in kinds:
            console.print(_table(kind))
    else:
        _show_names(console)
    warn_of_broken_plugins()
    return 0


def _show_names(console: Console) -> None:
    """Print all names by kind."""
    table = Table(box=None, show_header=False, padding=(0, 1), collapse_padding=True, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for kind, plural in PLURALS.items():
        names = sorted(_names(kind))
        table.add_row(plural, str(len(names)), Text(", ".join(names)))
    console.print(table)
    console.print(NEXT, markup=False, highlight=False, soft_wrap=True)


def _names(kind: str) -> Iterable[str]:
    if kind == "protocol":
        return options("protocol")
    return yaml_files("boards") if kind == "board" else plugins(kind)


def _table(kind: str) -> Table:
    """Return a table with one row per plugin, protocol or board of a kind."""
    table = Table(box=box.SIMPLE_HEAD, title=PLURALS[kind], title_justify="left", title_style="bold", pad_edge=False)
    third = {"protocol": "settings", "board": "cells"}.get(kind, "papers")
    for heading in ("name", "what it is", third):
        table.add_column(heading, overflow="fold", no_wrap=heading == "name")
    for row in _lines(kind):
        table.add_row(*(Text(cell) for cell in row))
    return table


def _found(named: Sequence[str], kinds: Sequence[str], wanted: Sequence[str]) -> Iterator[type[Plugin]]:
    known = {name: cls for kind in kinds if kind in KINDS for name, cls in plugins(kind).items()}
    for name in named:
        if name not in known:
            if instead := next((INSTEAD[kind] for kind in kinds if kind in INSTEAD and name in _names(kind)), ""):
                raise UserError(f"'{name}' has no details to list; {instead.format(name)}")
            why = why_unknown(name, kinds)
            near = f" ({why})" if why else did_you_mean(name, {other for kind in kinds for other in _names(kind)})
            raise UserError(f"cannot list the {wanted[0].removesuffix('s')} '{name}'{near}")
        yield known[name]


def _tell(cls: type[Plugin], console: Console) -> None:
    """Print a plugin in full: summary, docstring, settings, and papers with links."""
    console.print(Text.assemble((cls.title or cls.name, "bold"), f"  {choice(cls.kind, cls.name)}"))
    if cls.summary:
        console.print(Text(f"{cls.summary}\n"))
    paragraphs = re.sub(r"(?<!\n)\n(?!\n|[-*] )\s*", " ", inspect.cleandoc(cls.__doc__ or ""))
    console.print(Text(paragraphs, style="dim" if cls.summary else ""))
    if more := disclosure(cls):
        console.print(Text(f"\n{more[0].upper()}{more[1:]}."))
    if settings := describe_settings(cls, prefix_of(cls)):
        console.print(_settings_table(settings))
    for paper in papers_of(cls):
        known = dict.fromkeys(filter(None, (paper.short, paper.title, paper.venue)))  # short may equal title
        console.print(Text(". ".join(known) + "."))
        if paper.link:
            console.print(Text(f"  {paper.link}"), soft_wrap=True)
    console.print()


def _settings_table(settings: Sequence[SettingDescription]) -> Table:
    """Return a table of a plugin's settings, without columns on tuning if none is tuned."""
    told = any(one.space or one.about for one in settings)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("setting", "values", "default", *(("tuned over", "source or reason") if told else ())):
        table.add_column(heading, overflow="fold", no_wrap=heading == "setting")
    for one in settings:
        row = (one.name, one.values, text(one.default), *((one.space, one.about) if told else ()))
        table.add_row(*map(Text, row))
    return table


def _show_spaces(names: Sequence[str]) -> int:
    """Print the search spaces of all methods, or of those named."""
    known = {name: cls for kind in METHOD_KINDS for name, cls in plugins(kind).items()}
    for name in names:
        if name not in known:
            raise UserError(f"cannot list the method '{name}'{did_you_mean(name, known)}")
    table = Table(box=box.SIMPLE_HEAD, title="what is tuned", title_justify="left", title_style="bold")
    for heading in ("method", "setting", "default", "search space", "source or reason"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("method", "setting"))
    untuned: list[str] = []
    parts: list[tuple[str, str, type[Any]]] = [("all", "protocol", Protocol)]
    for name in names or known:
        parts.append((name, prefix_of(known[name]), known[name]))
    for name, prefix, cls in parts:
        for field, space in spaces_of(cls).items():
            about = space.source if isinstance(space, Space) else space.why
            row = (name, f"{prefix}.{field}", str(defaults_of(cls)[field]), str(space), about)
            table.add_row(*map(Text, row))
        untuned += [f"{name}'s {prefix}.{field}" for field in fields_without_space(cls) if cls is not Protocol]
    console = Console()
    console.print(table)
    if untuned:
        console.print(never_tuned(untuned), markup=False, highlight=False, soft_wrap=True)
    warn_of_broken_plugins()
    return 0


def never_tuned(settings: Iterable[str]) -> str:
    """Return in words that these settings of methods have no search space."""
    return f"without a search space, so never tuned: {', '.join(settings)} (docs/new-method.md says how to add one)"


def _show_compatibility(words: Sequence[str]) -> int:
    settings = [word for word in words if word != "methods"]
    if "methods" not in words or any("=" not in word for word in settings):
        raise UserError("write: fedspan list methods --compat [name=value ...]")
    chosen = settings_of(settings)
    if "board" in chosen:
        raise UserError("--compat takes one task, so 'board' cannot be set; name its dataset, model and protocol")
    with doing("trying every add-on on every algorithm"):
        found = Compatibility.of(resolve(chosen))
    table = Table(
        box=box.SIMPLE_HEAD, title=found.title, title_justify="left", title_style="bold", padding=(0, 1, 0, 0)
    )
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


def _lines(kind: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, summary, and papers, settings or number of cells."""
    if kind == "protocol":
        presets = options("protocol")
        for name, values in presets.items():
            changed = {k: v for k, v in values.items() if name == "default" or v != presets["default"][k]}
            rules = len(preset(name).tuned)
            more = f"; {counted_as(rules, 'setting')} tuned for methods (run --cfg job shows them)" if rules else ""
            yield name, " ".join(preset(name).description.split()), _settings(changed) + more
    elif kind == "board":
        for name in sorted(yaml_files("boards")):
            try:
                board = load_board(name)
                tuned = " + tuned" if board.tune else ""
                yield name, board.title, f"{len(board.expand())}{tuned}"
            except UserError as error:
                yield name, str(error), "cannot be read"
    else:
        for name, cls in plugins(kind).items():
            about, more = summary_of(cls), disclosure(cls)
            yield name, f"{about} ({more})" if more else about, "; ".join(paper.short for paper in papers_of(cls))


def _settings(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items())
