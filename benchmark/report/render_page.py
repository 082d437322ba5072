"""One self-contained page: no network, every text escaped, its own style and script allowed by their hashes."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from benchmark.board import Board
from benchmark.report import figures, render_text
from benchmark.report.axes import named, title
from benchmark.report.frame import STATUSES
from benchmark.report.table import COST_COLUMNS, Tabulated, write_bytes, write_flops, write_seconds

HERE = Path(__file__).parent
MOST_LISTED = 200  # cells without a result that the page lists


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["breakable"] = breakable
    environment.filters["title"] = title
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals.update(
        entry_text=render_text.entry_text,
        state_text=render_text.state_text,
        count_text=render_text.count_text,
        cost_columns=COST_COLUMNS,
        finite=math.isfinite,
        named=named,
    )
    return environment


def breakable(label: str) -> Markup:
    """Return a label, escaped, that may break before its settings."""
    return Markup("<wbr>(").join(escape(part) for part in label.split("("))


@dataclass(frozen=True)
class Inline:
    """A style sheet or script inside the page, and the hash by which the page's policy allows it."""

    code: Markup
    hash: str

    @classmethod
    def of(cls, name: str) -> Inline:
        """Read one that lies beside this module."""
        code = (HERE / name).read_text(encoding="utf-8")
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        return cls(Markup(code), f"sha256-{digest}")


@dataclass(frozen=True)
class Bar:
    """One stretch of the progress bar, in thousandths."""

    status: str
    count: int
    start: float
    width: float


def page(
    board: Board,
    frame: pd.DataFrame,
    tables: Sequence[Tabulated],
    drawings: Sequence[figures.Drawing],
    problems: Sequence[str],
) -> str:
    """Return the page of a board."""
    counts = {status: int((frame["status"] == status).sum()) for status in STATUSES}
    unfinished = frame[frame["status"] != "done"]
    unfinished = unfinished.assign(order=unfinished["status"].map(STATUSES.index)).sort_values("order", kind="stable")
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            board=board,
            style=Inline.of("page.css"),
            script=Inline.of("page.js"),
            scales=list(dict.fromkeys(frame["scale"])),
            counts=counts,
            total=len(frame),
            bars=_bars(counts, len(frame)),
            facts=_facts(frame),
            tables=tables,
            drawings=[(drawing, [Markup(svg) for svg in figures.inline(drawing)]) for drawing in drawings],
            problems=problems,
            unfinished=list(unfinished.head(MOST_LISTED).itertuples(index=False)),
            unlisted=max(0, len(unfinished) - MOST_LISTED),
            provenance=_provenance(frame),
        )
    )


def _bars(counts: dict[str, int], total: int) -> list[Bar]:
    bars, start = [], 0.0
    for status, count in counts.items():
        if count:
            width = 1000 * count / total
            bars.append(Bar(status, count, round(start, 2), round(width, 2)))
            start += width
    return bars


def _facts(frame: pd.DataFrame) -> list[tuple[str, str]]:
    done = frame[frame["status"] == "done"]
    seeds = frame["seed"].nunique()
    facts = [("Finished", f"{len(done)} of {len(frame)}"), ("Seeds", str(seeds))]
    if len(done):
        facts += [
            ("Time in all", write_seconds(float(done["seconds"].sum()))),
            ("Training compute in all", write_flops(float(done["train_flops"].sum()))),
            ("Largest peak memory", write_bytes(float(done["peak_memory_bytes"].max()))),
        ]
    return facts


def _provenance(frame: pd.DataFrame) -> list[tuple[str, list[tuple[str, int]]]]:
    """Return what the numbers were made with: each value with its number of records, the most frequent first."""
    recorded = frame[frame["status"] != "missing"]
    versions = _counted(
        (f"{name} {version}" for found in recorded["versions"] for name, version in found), by_name=True
    )
    digests = recorded[recorded["dataset_digest"].notna()]
    found = [
        ("Machine", _counted(recorded["device"].dropna())),
        ("Versions", versions),
        (
            "Dataset digest",
            _counted(f"{n} {d}" for n, d in zip(digests["dataset_name"], digests["dataset_digest"], strict=True)),
        ),
        ("Git commit", _counted(recorded["git_commit"].dropna())),
        ("Record schema", _counted(recorded["schema"])),
    ]
    return [(name, values) for name, values in found if values]


def _counted(values: Iterable[Any], by_name: bool = False) -> list[tuple[str, int]]:
    counts = Counter(map(str, values))
    return sorted(counts.items(), key=lambda item: item[0] if by_name else (-item[1], item[0]))
