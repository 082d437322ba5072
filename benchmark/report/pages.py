"""Pages from templates: no network access, all text escaped, inline styles and scripts allowed by their hashes."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from fedspan import __version__
from fedspan.benchmark import names
from fedspan.benchmark.report import render_text
from fedspan.benchmark.report.axes import in_words, title, under_title
from fedspan.benchmark.report.diagrams import row_in_words
from fedspan.benchmark.report.headline import of_table, points, ratio, signed_points
from fedspan.benchmark.report.labels import swatch
from fedspan.benchmark.report.ranking import Place
from fedspan.benchmark.report.statistics import mean_of
from fedspan.benchmark.report.tabulation import letters
from fedspan.benchmark.report.units import fixed, seconds_text, signed

DOCS = "FEDSPAN_DOCS"  # address of the documentation around the pages, if any, relative to their folder
TEMPLATES = Path(__file__).parent / "templates"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = breakable
    environment.filters["coded"] = coded
    environment.filters["title"] = title
    environment.filters["in_words"] = lambda label, kind: names.of_label(kind, label)
    environment.filters["method"] = names.of_method_label
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals.update(
        printed_text=render_text.printed_text,
        state_text=render_text.state_text,
        count_text=render_text.count_text,
        fixed=fixed,
        signed=signed,
        signed_points=signed_points,
        seconds_text=seconds_text,
        mean_of=mean_of,
        row_in_words=row_in_words,
        table_headline=of_table,
        in_words=in_words,
        swatch=swatch,
        under_title=under_title,
        reach_text=render_text.reach_text,
        place_text=place_text,
        finite=math.isfinite,
        points=points,
        ratio=ratio,
    )
    return environment


NO_PLACE = "—"  # nothing could decide it


def place_text(place: Place, several: bool) -> str:
    """Return a place, with the letter of its group if there are several; `NO_PLACE` if nothing could decide it."""
    if not place.tested:
        return NO_PLACE
    return f"{letters(place.group).upper()} {place.text}" if several else place.text


def breakable(label: str) -> Markup:
    """Return an escaped label that may wrap before its settings."""
    return Markup("<wbr>(").join(escape(part) for part in label.split("("))


def coded(docstring: str) -> Markup:
    """Return an escaped docstring with ``values`` and `names` set as code."""
    parts = re.split(r"(?:``|`)([^`]+)(?:``|`)", docstring)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if i % 2 else escape(part) for i, part in enumerate(parts)
    )


@dataclass(frozen=True)
class Inline:
    """An inline style sheet or script, and the hash by which the page's content security policy allows it."""

    code: Markup
    hash: str


@cache
def inline(name: str) -> Inline:
    """Return the style sheet or script in the template folder with this file name."""
    code = (TEMPLATES / name).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    return Inline(Markup(code), f"sha256-{digest}")


def render(
    template: str, root: str, place: str, heading: str, scripts: Sequence[str] = ("tables.js",), **values: Any
) -> bytes:
    """Return a page; `root` is the path from its folder to the site's, `place` its section of the site.

    A page without `scripts` also lacks the styles of sortable tables.
    """
    styles = [inline("base.css"), *([inline("site.css")] if scripts else [])]
    page = _environment().get_template(template)
    return page.render(
        styles=styles,
        scripts=[inline(name) for name in scripts],
        root=root,
        place=place,
        heading=heading,
        links=links(),
        docs=os.environ.get(DOCS, ""),
        version=__version__,
        **values,
    ).encode()


@cache
def links() -> list[tuple[str, str]]:
    """Return (name, address) of the package's project URLs, such as its sources; empty if it is not installed."""
    try:
        found = metadata.metadata("fedspan").get_all("Project-URL") or []
    except metadata.PackageNotFoundError:  # a checkout on the path, not installed
        return []
    pairs = [text.partition(",") for text in found]
    return [(name.strip(), address.strip()) for name, _, address in pairs if address.strip().startswith("https://")]


def embedded(data: Any) -> Markup:
    """Return JSON that is safe inside a script element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def slug(name: str) -> str:
    """Return a file name for a method or a dataset, unique to its name."""
    plain = re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-")
    same = re.fullmatch(r"[a-z0-9_]+( \+ [a-z0-9_]+)*", name) is not None
    return plain if same else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
