"""Writer of docs/recipes.md: the source of each setting of each board, and how many printed numbers have a cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.records.atomic import write_atomically
from fedspan.benchmark.report.recipe_files import lines, name_of
from fedspan.benchmark.report.recipes import Audit, Recipe, Sourced, audit
from fedspan.benchmark.spec.board import Board, load_board
from fedspan.benchmark.spec.plan import PlannedCell, plan
from fedspan.benchmark.spec.presets import yaml_files

PAGE = Path("docs/recipes.md")
OWN = "Recipes not from a paper"
HEAD = """# Recipes: where each setting comes from

Made by `nox -s recipes` from `results/paper/`; a test fails where it is stale. `hyperparameters.csv` has what the
papers state and of which cells, `recipes/*.yaml` what they do not state, and each setting in which a board differs from
them (`differs: true`), with source and reason. `fedspan plan board=NAME` prints one line for each setting without a
source, each difference without a reason, and each printed number without a cell.

"""


def all_boards() -> list[tuple[Board, list[PlannedCell]]]:
    """Return every board that is not a union of others, with its full-size cells."""
    boards = [load_board(name) for name in sorted(yaml_files("boards"))]
    return [(board, plan(board.expand())) for board in boards if not board.boards]


def to_markdown(boards: Sequence[tuple[Board, Sequence[PlannedCell]]], found: Audit) -> str:
    """Return the page as Markdown."""
    sections: dict[str, list[Recipe]] = {}
    for (board, _), recipe in zip(boards, found.recipes, strict=True):
        sections.setdefault(papers_heading(board), []).append(recipe)
    text = HEAD + "\n".join(_summary(found)) + "\n"
    for title in sorted(sections, key=lambda title: (title == OWN, title)):
        text += f"\n## {title}\n\n" + "\n".join(_table(sections[title])) + "\n"
    return text


def papers_heading(board: Board) -> str:
    """Return the heading of a board: the names of its papers, or `OWN` without any."""
    names = {name_of(source.partition("/")[0]).partition(" (")[0].partition(",")[0] for source in board.sources}
    return " and ".join(sorted(names)) or OWN


def _summary(found: Audit) -> Iterator[str]:
    differing = sum(line.differs for line in lines().lines)
    yield "| | |"
    yield "|---|---|"
    yield f"| printed numbers | {found.numbers} |"
    yield f"| of them with a planned cell, whose settings are checked | {found.held} |"
    yield f"| of them without a cell, for the reasons below | {found.excused} |"
    yield f"| settings that the papers state, each for some cells | {found.stated} |"
    yield f"| matched by a planned cell | {found.matched} |"
    yield f"| lines that say why a board differs from what is stated | {differing} |"
    yield f"| our own choices, where nothing is stated or released | {found.ours} |"
    yield f"| open problems | {len(found.problems)} |"
    yield ""
    yield "| printed numbers without a cell | why |"
    yield "|---|---|"
    for no in lines().no_cell:
        yield f"| `{no.printed}` {no.metric} | {no.reason} |"


def _table(recipes: Sequence[Recipe]) -> Iterator[str]:
    """Yield the table of all settings of some boards, with equal lines of several boards merged."""
    boards: dict[Sourced, list[str]] = {}
    for recipe in recipes:
        for one in recipe.settings:
            boards.setdefault(one, []).append(recipe.board)
    rows: dict[tuple[str, ...], list[str]] = {}
    for one in sorted(boards, key=lambda one: (one.setting, one.of, one.source, one.reason, one.value)):
        named = boards[one]
        where = "all" if len(named) == len(recipes) > 1 else ", ".join(f"`{name}`" for name in named)
        rows.setdefault((one.setting, one.of, where, one.source, one.reason), []).append(one.value)
    yield "| setting | value | of | boards | source | why |"
    yield "|---|---|---|---|---|---|"
    for (setting, of, where, source, reason), values in rows.items():
        cells = (f"`{setting}`", ", ".join(values), of, where, source, reason)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    """Write the page; raise `UserError` if the audit found problems, such as a setting without a source."""
    boards = all_boards()
    found = audit(boards)
    write_atomically(PAGE, to_markdown(boards, found).encode())
    if found.problems:
        raise UserError("\n".join(found.problems))


if __name__ == "__main__":
    main()
