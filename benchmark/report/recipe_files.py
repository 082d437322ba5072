"""Settings stated in the papers, and the lines of ``results/paper/recipes/*.yaml`` that supply the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.fields import from_values
from fedspan.benchmark.report import printed
from fedspan.benchmark.spec.presets import load_yaml

COLUMNS = ("paper", "scope", "name", "value", "source_section", "tables", "cells", "setting", "not_a_setting")
OURS = "ours"

Values = Mapping[str, tuple[Any, ...]]  # setting -> allowed values


@dataclass(frozen=True)
class Stated:
    """A line of ``hyperparameters.csv``: the `settings` that a paper states, and for which cells.

    `tables` are the tables that it applies to, empty for all of the paper; `cells` are settings that select the cells.
    """

    paper: str
    where: str
    tables: tuple[str, ...]
    cells: Values
    settings: Values

    @property
    def source(self) -> str:
        """The paper, and the place in it."""
        place = self.where if self.where[:5] in ("Table", "Figur") else f"Sec. {self.where}"
        return f"{name_of(self.paper)}, {place}"


@dataclass(frozen=True)
class RecipeLine:
    """A line of ``recipes/*.yaml``: values of settings (`set`; a list allows any of them) in cells that match `when`.

    `source` is a paper, released code, or "ours". A line of ours needs a `reason`, and so does one that `differs` from
    a paper; only such a line excuses a difference.
    """

    source: str
    set: dict[str, Any]
    when: dict[str, Any] = field(default_factory=dict)
    boards: tuple[str, ...] = ()
    reason: str = ""
    differs: bool = False


@dataclass(frozen=True)
class Excuse:
    """The reason why the numbers of a printed table (all, or those of a `metric`) have no cell."""

    printed: str
    reason: str
    source: str
    metric: str = ""


def name_of(paper: str) -> str:
    """Return the display name of a paper, as a recipe file gives it."""
    return lines().papers.get(paper, paper)


# reading ------------------------------------------------------------------------------------------


def stated() -> tuple[Stated, ...]:
    """Return the settings stated in the papers; raise `UserError` naming a line that cannot be read."""
    place = printed.folder()
    path = place / "hyperparameters.csv" if place else None
    return _stated(path, path.stat().st_mtime_ns) if path and path.is_file() else ()


@cache
def _stated(path: Path, changed: int) -> tuple[Stated, ...]:
    found = []
    for number, line in printed.lines_of(path, COLUMNS):
        if bool(line["setting"]) == bool(line["not_a_setting"]):
            raise UserError(f"{path} line {number}: fill either setting or not_a_setting")
        if not line["source_section"]:
            raise UserError(f"{path} line {number}: it has no source_section")
        if line["setting"]:
            found.append(
                Stated(
                    paper=line["paper"],
                    where=line["source_section"],
                    tables=tuple(line["tables"].split()),
                    cells=_words(line["cells"]),
                    settings=_words(line["setting"]),
                )
            )
    return tuple(found)


def _words(words: str) -> Values:
    pairs = (word.partition("=") for word in words.split())
    return {name: tuple(map(yaml.safe_load, values.split("|"))) for name, _, values in pairs}


@dataclass(frozen=True)
class RecipeLines:
    """The lines of all recipe files, and the names of papers."""

    lines: tuple[RecipeLine, ...] = ()
    no_cell: tuple[Excuse, ...] = ()
    papers: Mapping[str, str] = field(default_factory=dict)


def lines() -> RecipeLines:
    """Return the lines of ``recipes/*.yaml``; raise `UserError` for one without a source or a required reason."""
    place = printed.folder()
    paths = sorted((place / "recipes").glob("*.yaml")) if place else []
    return _lines(tuple((path, path.stat().st_mtime_ns) for path in paths))


@cache
def _lines(files: tuple[tuple[Path, int], ...]) -> RecipeLines:
    found, without, papers = [], [], dict[str, str]()
    for path, _ in files:
        raw = load_yaml(path)
        if unknown := set(raw) - {"papers", "boards", "lines", "no_cell"}:
            raise UserError(f"{path}: unknown field '{min(unknown)}'; a recipe has papers, boards, lines and no_cell")
        if not isinstance(named := raw.get("papers") or {}, dict):
            raise UserError(f"{path}: papers must be a mapping of files to names")
        papers |= {str(paper): str(name) for paper, name in named.items()}
        boards = tuple(map(str, raw.get("boards") or ()))
        for number, item in enumerate(raw.get("lines") or ()):
            found.append(_line(item, boards, f"{path}: lines[{number}]"))
        for number, item in enumerate(raw.get("no_cell") or ()):
            without.append(from_values(Excuse, {"source": "", "reason": "", **item}, f"{path}: no_cell[{number}]"))
            _require_source(without[-1], f"{path}: no_cell[{number}]")
    return RecipeLines(tuple(found), tuple(without), papers)


def _line(item: Any, boards: tuple[str, ...], where: str) -> RecipeLine:
    if not isinstance(item, dict) or not isinstance(item.get("set"), dict):
        raise UserError(f"{where} must be a mapping with set and source")
    line = from_values(RecipeLine, {"source": "", "boards": list(boards), **item}, where)
    _require_source(line, f"{where} ({', '.join(line.set)})")
    return line


def _require_source(line: RecipeLine | Excuse, where: str) -> None:
    if not line.source.strip():
        raise UserError(f"{where} has no source: name a paper with its section, a released code, or 'ours'")
    differs = isinstance(line, RecipeLine) and line.differs
    if (differs or line.source.startswith(OURS)) and not line.reason.strip():
        raise UserError(f"{where} {'differs from a paper' if differs else 'is ours'} and has no reason")
