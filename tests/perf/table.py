"""The table of docs/performance.md, written by the session that measured it."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedspan.benchmark.records.provenance import processor

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
USUAL = ("2 cores", "torch 2.15.0+cu132")  # stated above the table, not in its rows
HEAD = ["| what | ours | reference | ours / reference | target | measured |", "|---|---|---|---|---|---|"]


def write(measured: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Put the rows of `measured` into the page, beside those measured before; return them, each with its last ratio."""
    before, rest = PAGE.read_text().split(BEGIN)
    old, after = rest.split(END)
    lines = [line for line in old.splitlines() if line.startswith("| ") and line not in HEAD]
    rows = {line.removeprefix("| ").split(" | ")[0]: line for line in lines}
    new = {what(name): _row(what(name), info) for name, info in measured.items()}
    table = [*HEAD, *(rows | new).values()]
    PAGE.write_text("\n".join([before.rstrip(), "", BEGIN, "", *table, "", END]) + after)
    return [line + (f" before: {rows[name].split(' | ')[3]} |" if name in rows else "") for name, line in new.items()]


def what(test: str) -> str:
    """Return what a test measures in words: ``W2, vmap`` for ``test_w2[vmap]``."""
    name, _, case = test.removeprefix("test_").removesuffix("]").partition("[")
    words = re.sub(r"\bw(?=\d)", "W", name.replace("_", " "))
    return f"{words}, {case.replace('-', ' ')}" if case else words


def _row(name: str, info: Mapping[str, Any]) -> str:
    ours, reference = (f"{info[one]:.3g} {info['unit']}".rstrip() for one in ("ours", "reference"))
    facts = (f"{os.cpu_count()} cores", f"torch {info['torch']}")
    where = ", ".join([f"{datetime.date.today()}", processor(), *(fact for fact in facts if fact not in USUAL)])
    return f"| {name} | {ours} | {reference}, {info['against']} | {info['ratio']:.3f} | {info['target']} | {where} |"
