"""Frozen versions of boards: a board's text under a numbered name, with digests that pin its cells.

A board that tunes has digests of its trials too.

``digits-v1`` is a board like any other, with its own address and pages. Protocols and pieces that its text refers to
may change later; then its cells are no longer those of its version, and it is refused instead of misread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import yaml
from omegaconf import OmegaConf

from fedspan.benchmark.errors import UserError
from fedspan.benchmark.spec.board import Board, board_files, load_board
from fedspan.benchmark.spec.plan import digest_of_cells, plan
from fedspan.benchmark.spec.studies import digest_of_trials, studies, trials_at

FOLDER = Path("leaderboards/frozen")


def freeze(name: str) -> Path:
    """Write the next version of a board, ``leaderboards/frozen/NAME-vN.yaml``, and return its path.

    Raises `UserError` if the board cannot be frozen, or is the same as its last version.
    """
    if not (FOLDER.parent / "boards").is_dir():
        raise UserError(f"there is no {FOLDER.parent / 'boards'} here; run 'fedspan freeze' in a checkout")
    board = load_board(name)
    if board.path:
        raise UserError(f"{name} is not a board in {FOLDER.parent / 'boards'}; only those can be frozen")
    if board.boards:
        raise UserError(f"board '{name}' is made of boards; freeze those instead")
    if board.frozen:
        raise UserError(f"board '{name}' is frozen already")
    name, digests = board.name, digests_of(board)
    last = max(_versions(name), default=0)
    if last and load_board(f"{name}-v{last}").frozen == digests:
        raise UserError(f"board '{name}' has the cells of its version {name}-v{last}; there is nothing to freeze")
    path = FOLDER / f"{name}-v{last + 1}.yaml"
    lines = "".join(f'  {scale}: "{digest}"\n' for scale, digest in digests.items())  # 1e15 alone is a number
    source = board_files()[name]
    text = source.read_text(encoding="utf-8").rstrip("\n")
    text += f"\nfrozen:  # digests of its cells; 'fedspan freeze' wrote them\n{lines}"
    try:
        OmegaConf.create(text)
    except yaml.YAMLError:
        raise UserError(f"{source}: digests cannot be appended to its text; write the board in block style") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _versions(name: str) -> Iterable[int]:
    for known in board_files():
        if found := re.fullmatch(rf"{re.escape(name)}-v(\d+)", known):
            yield int(found[1])


def digests_of(board: Board) -> dict[str, str]:
    """Return the digests of a board's cells by scale and, if it tunes, those of its trials."""
    found: dict[str, str] = {}
    for scale in dict.fromkeys([board.full, *board.scales]):
        found[scale] = digest_of_cells(plan(board.expand({"scale": [scale]})))
        if board.tune:
            found[trials_at(scale)] = digest_of_trials(studies(replace(board, frozen={}), {"scale": [scale]}))
    return found
