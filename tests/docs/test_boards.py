"""docs/boards.md names every field of a board, and its example is a board."""

import dataclasses
import re
from pathlib import Path

import pytest

from fedspan.benchmark.spec import board as boards
from fedspan.benchmark.spec.plan import plan
from fedspan.benchmark.spec.presets import SettingRule
from fedspan.benchmark.spec.tuning import Tune

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "boards.md").read_text()
REFERENCE = PAGE.split("\n## Every field\n")[1]


def fields(cls):
    return {field.name for field in dataclasses.fields(cls)}


def named(beginning):
    """Return the names in the first column of the table below the line that begins so."""
    [text] = re.findall(rf"^{re.escape(beginning)}.*?\n\n(\|.*?)(?:\n\n|\Z)", REFERENCE, re.MULTILINE | re.DOTALL)
    return {name for row in text.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])}


@pytest.mark.parametrize(
    ("beginning", "has"),
    [
        ("Of a board:", boards.FIELDS),
        ("Of a piece:", boards.PIECE_FIELDS - {"base", "scales", "tables", "extends"}),
        ("Beside settings", {boards.ABLATION}),
        ("Of a scale, ", {"tuned", "keep"}),
        ("Of a table:", fields(boards.Table)),
        ("Of a figure:", fields(boards.Figure)),
    ],
)
def test_the_reference_names_exactly_the_fields_that_there_are(beginning, has):
    assert named(beginning) == has


@pytest.mark.parametrize("cls", [SettingRule, Tune])
def test_fields_of_fields_are_named_beside_them(cls):
    assert all(f"`{name}`" in REFERENCE for name in fields(cls))


@pytest.fixture
def example(tmp_path):
    [text] = re.findall(r"## An annotated board.*?```yaml\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "example.yaml"
    path.write_text(text)
    return boards.read_board(path), text


def test_the_example_is_a_board_at_every_scale(example):
    board, _ = example
    sizes = {scale: len(plan(board.expand({"scale": [scale]}))) for scale in ("own", "small", "smoke")}
    assert sizes == {"own": 24, "small": 24, "smoke": 8}
    assert sum(point.ablation for point in board.expand()) == 6
    [default] = plan([{"protocol": "digits"}])
    smoke = plan(board.expand({"scale": ["smoke"]}))
    assert {cell.cell.protocol.lr for cell in smoke} == {default.cell.protocol.lr}, "keep does not keep"


def test_the_example_explains_every_line_that_needs_it(example):
    board, text = example
    assert (len(board.tables), {figure.kind for figure in board.figures}) == (2, {"accuracy", "sweep"})
    assert text.count("#") > 10
