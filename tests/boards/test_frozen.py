"""Frozen boards keep their cells: who changes a protocol or a piece sees it here."""

import pytest

from fedspan.benchmark.spec.board import load_board
from fedspan.benchmark.spec.freezing import digests_of
from fedspan.benchmark.spec.presets import yaml_files
from fedspan.benchmark.spec.studies import trials_at

FROZEN = sorted(yaml_files("frozen"))


def test_digits_v1_is_frozen():
    assert "digits-v1" in FROZEN


@pytest.mark.parametrize("name", FROZEN)
def test_a_frozen_board_has_the_cells_that_were_frozen_at_every_scale(name):
    board = load_board(name)
    scales = {board.full, *board.scales}
    assert board.frozen.keys() == scales | {trials_at(scale) for scale in scales if board.tune is not None}
    now = digests_of(board)
    assert {scale: now.get(scale) for scale in board.frozen} == board.frozen
