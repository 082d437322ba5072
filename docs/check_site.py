"""Check of a built site: links lead to a page and an anchor, nothing is loaded from outside, no code lies in it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src")}
SILENT = {"canonical", "next", "prev", "alternate"}  # relations of <link> that load nothing


class Page(HTMLParser):
    """The links, loaded resources and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the links, resources and anchors of an element."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        silent = tag == "link" and given.get("rel") in SILENT
        self.loads += [given[name] for name in given if (tag, name) in LOADED and not silent]


@cache
def page_of(path: Path) -> Page:
    """Return a page of the site, cached."""
    return Page(path.read_text(encoding="utf-8", errors="replace"))


def problems(site: Path) -> Iterator[str]:
    """Yield the problems of a site's pages."""
    for path in sorted(site.rglob("*.html")):
        page, where = page_of(path), path.relative_to(site)
        for load in page.loads:
            if urlsplit(load).scheme in ("http", "https") or load.startswith("//"):
                yield f"{where}: loads {load} from outside"
        for link in dict.fromkeys([*page.links, *page.loads]):
            if why := broken(link, path, site):
                yield f"{where}: {link}: {why}"
    for path in sorted(site.rglob("*.css")):
        if re.search(r"""(url\(|@import)\s*['"]?(https?:)?//""", path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)}: loads from outside"
    for path in sorted(site.rglob("*.py*")):
        yield f"{path.relative_to(site)}: code, which mkdocs.yml should exclude"


def broken(link: str, page: Path, site: Path) -> str:
    """Return why an internal link is broken, or an empty string if it is not."""
    parts = urlsplit(link)
    if parts.scheme or link.startswith("//"):
        return ""
    base = site if parts.path.startswith("/") else page.parent
    target = base / unquote(parts.path).lstrip("/") if parts.path else page
    target = target / "index.html" if target.is_dir() else target
    if not target.resolve().is_relative_to(site.resolve()):
        return "it leaves the site"
    if not target.is_file():
        return "there is no such file"
    anchor = unquote(parts.fragment)
    state = "=" in anchor or not anchor  # a filter setting, not an anchor
    if target.suffix == ".html" and not state and anchor not in page_of(target).anchors:
        return "there is no such anchor"
    return ""


def main() -> int:
    """Print the problems of the site in the first argument; return 1 if there are any."""
    found = list(problems(Path(sys.argv[1])))
    print("\n".join(found) or "every link leads somewhere, nothing is loaded from outside, no code lies in it")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
