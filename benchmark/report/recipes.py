"""Audit of boards: the source of each setting, and whether each printed number has a cell with its paper's settings.

``results/paper/hyperparameters.csv`` holds the settings that the papers state. ``results/paper/recipes/*.yaml`` has a
line for each setting that they do not state, and for each in which a board differs from them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

from fedspan.benchmark.fields import defaults_of
from fedspan.benchmark.registry import SINGLE_KINDS
from fedspan.benchmark.report.axes import choices_of, flat, text
from fedspan.benchmark.report.printed import VALUE, Printed, all_printed, kind_of, printed_in
from fedspan.benchmark.report.recipe_files import OURS, Excuse, RecipeLine, Stated, lines, name_of, stated
from fedspan.benchmark.spec.board import Board, load_board
from fedspan.benchmark.spec.plan import PlannedCell, plan

NO_SETTINGS = {"schema", "scale", "protocol.validation"}  # validation: a trial reproduces nothing
COMPARED = ("algorithm", "addons", "addon.", "diagnostics.")  # compared or observed on a board of our own

_ABSENT = "\0"  # equal to no setting's value


@dataclass(frozen=True)
class Sourced:
    """A setting of some cells of a board, and the source of its value. `of` is the condition on these cells."""

    setting: str
    value: str
    of: str
    source: str
    reason: str = ""


@dataclass
class Recipe:
    """The audit of one board: its settings, problems, and names of the numbers that have a cell.

    `used` are the ids of stated lines and recipe lines that apply to some cell, `met` those of stated lines that some
    cell satisfies.
    """

    board: str
    settings: set[Sourced] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    numbers: set[tuple[str, ...]] = field(default_factory=set)
    used: set[int] = field(default_factory=set)
    met: set[int] = field(default_factory=set)


# matching -----------------------------------------------------------------------------------------


def _applies(when: Mapping[str, Any], what: Mapping[str, Any]) -> bool:
    return all(name in what and any(_has(what[name], one) for one in choices_of(ones)) for name, ones in when.items())


def _has(value: Any, wanted: Any) -> bool:
    if isinstance(value, list) and not isinstance(wanted, (list, tuple)):
        return wanted in value or (wanted == "none" and not value)
    return _same(value, wanted)


def _same(value: Any, wanted: Any) -> bool:
    return bool(json.dumps(value) == json.dumps(wanted) or (value == wanted and type(value) is not bool))


def settings_of(planned: PlannedCell) -> dict[str, Any]:
    """Return the settings of a cell that may need a source, by dotted names."""
    cell = planned.cell
    what = flat({name: value for name, value in cell.settings.items() if name in cell.what})
    return {name: value for name, value in what.items() if name not in NO_SETTINGS and not name.endswith(".version")}


def _needed(planned: PlannedCell, what: Mapping[str, Any], full: str) -> Iterator[str]:
    """Yield the settings that need a source: all on a paper's board, on our own those set but not compared."""
    if full == "paper":
        yield from what
        return
    cell = planned.cell
    usual: dict[str, Any] = {}
    for kind in SINGLE_KINDS:
        usual |= {f"{kind}.{name}": value for name, value in defaults_of(type(getattr(cell, kind))).items()}
    usual |= {f"protocol.{name}": value for name, value in defaults_of(type(cell.protocol)).items()}
    for name, value in what.items():
        if not name.startswith(COMPARED) and not (name in usual and _same(value, _plain(usual[name]))):
            yield name


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


# one board ----------------------------------------------------------------------------------------


def examine(board: Board, cells: Iterable[PlannedCell]) -> Recipe:
    """Return the sources of the settings of a board's full-size cells, and the problems found."""
    recipe = Recipe(board.name)
    numbers, others = _numbers(board)
    known = stated()
    mine = [line for line in lines().lines if any(fnmatch(board.lineage, name) for name in line.boards)]
    papers = {source.partition("/")[0] for source in board.sources}
    for source in board.sources:
        paper, _, table = source.partition("/")
        if not any(_covers(row, {(paper, table)}) for row in known):
            recipe.problems.append(f"board '{board.name}': {source} has no settings in hyperparameters.csv")
    rows = [row for row in known if row.paper in papers]
    missing: dict[str, list[PlannedCell]] = {}
    seen: set[str] = set()
    owners: dict[tuple[str, ...], set[str]] = {}
    known_settings: dict[tuple[Any, ...], tuple[dict[str, Any], str]] = {}  # of cells that differ only in the seed
    for planned in cells:
        if (alike := planned.cell.identity_without_seed) not in known_settings:
            what = settings_of(planned)
            known_settings[alike] = what, json.dumps({**what, "seed": None}, sort_keys=True)
        what, point = known_settings[alike]
        what = what | {"seed": planned.cell.seed}
        again = point in seen
        seen.add(point)
        own = [number for number in numbers if number.belongs_to(what)]
        for number in own:
            owners.setdefault(number.name, set()).add(point)
        tables = _tables(board, own)
        fitting = [row for row in rows if _covers(row, tables) and _applies(row.cells, what)]
        lawful = [line for line in mine if _applies(line.when, what)]
        for name in ["seed"] if again else _needed(planned, what, board.full):
            problem = _source(recipe, name, what[name], fitting, own, lawful)
            if problem:
                missing.setdefault(problem, []).append(planned)
    recipe.numbers |= owners.keys()
    for number_name, points in owners.items():
        if len(points) > 1:
            recipe.problems.append(
                f"board '{board.name}': the number {', '.join(number_name)} matches {len(points)} different cells"
            )
    for problem, found in missing.items():
        recipe.problems.append(f"board '{board.name}': {problem} ({len(found)} cells, as {found[0].cell.label})")
    recipe.problems += _without_cell(board, [*numbers, *others], recipe.numbers)
    return recipe


def _numbers(board: Board) -> tuple[list[Printed], list[Printed]]:
    """Return the printed numbers that one of the board's tables shows, by metric and kind, and its tables' others."""
    shown: dict[tuple[str, ...], Printed] = {}
    every: dict[tuple[str, ...], Printed] = {}
    for table in board.tables:
        start = table.metric.removesuffix("*")
        for number in (*printed_in(table.printed), *printed_in(table.printed, differences=True)):
            every[number.name] = number
            if number.kind != kind_of(table):
                continue
            if number.metric == table.metric or (start != table.metric and number.metric.startswith(start)):
                shown[number.name] = number
    return list(shown.values()), [number for name, number in every.items() if name not in shown]


def _tables(board: Board, own: Sequence[Printed]) -> set[tuple[str, str]]:
    """Return the (paper, table) of a cell's numbers and the board's figures; all board sources without a number."""
    mine = {(number.paper, number.table) for number in own}
    figures = {_split(source) for source in board.printed}
    return mine | figures if mine else {_split(source) for source in board.sources}


def _split(source: str) -> tuple[str, str]:
    paper, _, table = source.partition("/")
    return paper, table


def _covers(row: Stated, tables: set[tuple[str, str]]) -> bool:
    return any(row.paper == paper and (not row.tables or table in row.tables) for paper, table in tables)


def _source(
    recipe: Recipe,
    name: str,
    value: Any,
    rows: Sequence[Stated],
    numbers: Sequence[Printed],
    lawful: Sequence[RecipeLine],
) -> str | None:
    """Record the source of a cell's setting in `recipe`; return the problem if it has none."""
    saying_so = [row for row in rows if name in row.settings]
    recipe.used |= set(map(id, saying_so))
    ruling = {row.paper: row for row in saying_so}.values()  # the last applicable line of a paper wins
    unmet = [row for row in ruling if not any(_same(value, one) for one in row.settings[name])]
    recipe.met |= {id(row) for row in saying_so if any(_same(value, one) for one in row.settings[name])}
    row = next(iter([*unmet, *ruling]), None)
    number = next((number for number in numbers if name in number.settings), None)
    saying = [
        line
        for line in lawful
        if line.differs == bool(unmet) and any(_same(value, one) for one in choices_of(line.set.get(name, _ABSENT)))
    ]
    line = saying[-1] if saying else None
    shown = text(value)
    if row is not None and not unmet:
        found = Sourced(setting=name, value=shown, of=_condition(row.cells), source=row.source)
    elif row is None and number is not None:
        found = Sourced(setting=name, value=shown, of="", source=f"{name_of(number.paper)}, {number.place}")
    elif line is not None:
        recipe.used.add(id(line))
        stated_as = f"The paper states {_alternatives(row.settings[name])} ({row.source}). " if row else ""
        found = Sourced(
            setting=name, value=shown, of=_condition(line.when), source=line.source, reason=stated_as + line.reason
        )
    elif row is not None:
        return f"{name} is {shown}, {row.source} states {_alternatives(row.settings[name])}, and no line says why"
    else:
        return f"{name}={shown} has no source: no paper states it, and no line says where it comes from"
    recipe.settings.add(found)
    return None


def _alternatives(values: Sequence[Any]) -> str:
    return " or ".join(map(text, values))


def _condition(when: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={'|'.join(text(one) for one in choices_of(ones))}" for name, ones in when.items())


def _without_cell(board: Board, numbers: Sequence[Printed], held: set[tuple[str, ...]]) -> list[str]:
    """Return a problem for each number of the board's tables that has no cell and no excuse."""
    return [
        f"board '{board.name}': no cell has what {number.source} prints: {number.metric} {number.value:g} "
        f"({number.row}; {number.column}{'' if number.kind == VALUE else '; ' + number.kind})"
        for number in numbers
        if number.value is not None and number.name not in held and excuse(number) is None
    ]


def excuse(number: Printed) -> Excuse | None:
    """Return the line that explains why a number has no cell, if any."""
    source = f"{number.paper}/{number.table}"
    return next((no for no in lines().no_cell if no.printed == source and no.metric in ("", number.metric)), None)


def problems_of(axes: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the problems with the recipes of the boards that a command line plans at full size.

    A board of our own needs no lines unless some file in ``recipes`` names it. Settings from the command line are
    ignored: the user who gives them knows their source.
    """
    found: list[str] = []
    for board in (part for name in axes.get("board", ()) for part in load_board(str(name)).parts()):
        named = any(fnmatch(board.lineage, name) for line in lines().lines for name in line.boards)
        if (board.sources or named) and board.full in axes.get("scale", [board.full]):
            found += examine(board, plan(board.expand())).problems
    return found


# all boards ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Audit:
    """All boards' recipes and problems, and counts: printed `numbers`, those with a cell (`held`), those `excused`.

    `stated` counts the lines of the papers, `matched` those that some cell satisfies, `ours` our own recipe lines.
    """

    recipes: tuple[Recipe, ...]
    problems: tuple[str, ...]
    numbers: int
    held: int
    excused: int
    stated: int
    matched: int
    ours: int


def audit(boards: Sequence[tuple[Board, Sequence[PlannedCell]]]) -> Audit:
    """Return the results of `examine` for all boards, with unused stated settings and recipe lines as problems."""
    recipes = tuple(examine(board, cells) for board, cells in boards)
    problems = [problem for recipe in recipes for problem in recipe.problems]
    held = set().union(*(recipe.numbers for recipe in recipes))
    used = set().union(*(recipe.used for recipe in recipes))
    told = {source for board, _ in boards for table in board.tables for source in table.printed}
    numbers = [number for number in all_printed() if number.value is not None]
    excused = [number for number in numbers if number.name not in held and excuse(number)]
    for number in numbers:
        if f"{number.paper}/{number.table}" not in told and excuse(number) is None:
            problems.append(f"{number.source} ({number.row}; {number.column}): no board names this table")
    known, mine = stated(), lines()
    for row in known:
        if id(row) not in used:
            problems.append(f"hyperparameters.csv: {_condition(row.settings)} of {row.source} applies to no cell")
    for line in mine.lines:
        if id(line) not in used:
            problems.append(f"recipes: no cell needs the line {_condition(line.set)} ({_condition(line.when)})")
    for no in mine.no_cell:
        if not any(excuse(number) is no for number in excused):
            problems.append(f"recipes: {no.printed} {no.metric} is excused as having no cell, but it has one")
    ours = sum(line.source.startswith(OURS) for line in mine.lines)
    met = {row for recipe in recipes for row in recipe.met}
    having = sum(number.name in held for number in numbers)
    return Audit(
        recipes=recipes,
        problems=tuple(problems),
        numbers=len(numbers),
        held=having,
        excused=len(excused),
        stated=len(known),
        matched=len(met),
        ours=ours,
    )
