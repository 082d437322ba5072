"""Papers cited by plugins: one BibTeX file, ``fedspan/papers.bib``, with its keys in `Plugin.papers`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from fedspan import __version__
from fedspan.benchmark.errors import UserError, closest, did_you_mean
from fedspan.benchmark.places import packaged
from fedspan.benchmark.registry import Plugin

FILE = "papers.bib"
SUITE = "fedspan"  # the key of this package's own entry
VENUES = ("booktitle", "journal", "institution", "howpublished")
ENTRY = re.compile(r"^@(\w+)\{([^,\s]+),\n(.*?)^\}$", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^  (\w+) = \{(.*)\},$", re.MULTILINE)
IDENTIFIER = re.compile(r"arXiv:(?P<arxiv>\S+)|doi:(?P<doi>10\.\S+)|(?P<url>https?://\S+)", re.IGNORECASE)


@dataclass(frozen=True)
class Paper:
    """A bibliography entry: `authors` are last names, `bibtex` is the source text; missing fields are empty."""

    key: str
    title: str
    authors: tuple[str, ...] = ()
    year: str = ""
    venue: str = ""
    doi: str = ""
    arxiv: str = ""
    url: str = ""
    bibtex: str = ""

    @property
    def link(self) -> str:
        """The paper's URL: arXiv, which everybody can read, in preference to the publisher's DOI."""
        if self.arxiv:
            return f"https://arxiv.org/abs/{self.arxiv}"
        return f"https://doi.org/{self.doi}" if self.doi else self.url

    @property
    def short(self) -> str:
        """The in-text citation: ``McMahan et al. 2017``."""
        if not self.authors:
            return self.title
        some = f"{self.authors[0]} et al." if len(self.authors) > 2 else " and ".join(self.authors)
        return f"{some} {self.year}".strip()


@cache
def papers() -> Mapping[str, Paper]:
    """Return the bibliography by key, in file order."""
    return read(packaged(FILE).read_text(encoding="utf-8"))


def read(text: str) -> dict[str, Paper]:
    """Return the entries of a BibTeX file that has one field per line."""
    return {
        key: _paper(key, dict(FIELD.findall(body)), f"@{kind}{{{key},\n{body}}}")
        for kind, key, body in ENTRY.findall(text)
    }


def suite() -> str:
    """Return the BibTeX of this package at its version."""
    return papers()[SUITE].bibtex.replace("  note = {", f"  version = {{{__version__}}},\n  note = {{")


def papers_of(plugin: type[Plugin]) -> tuple[Paper, ...]:
    """Return the papers of a plugin for display; an unknown key becomes a paper without a link, titled by key.

    Plugins of other packages may also identify a paper by ``arXiv:...``, ``doi:...`` or a URL.
    """
    return tuple(_found(key) or Paper(key, key) for key in plugin.papers)


def citable(plugin: type[Plugin]) -> tuple[Paper, ...]:
    """Return the papers of a plugin; raise `UserError` for a key that is neither known nor an identifier."""
    for key in plugin.papers:
        if _found(key) is None:
            hint = did_you_mean(key, closest(key, papers()))  # all keys would be too many
            raise UserError(
                f"{plugin.kind} '{plugin.name}' cites '{key}', which is "
                f"not a key of {FILE}, arXiv:..., doi:... or a URL{hint}"
            )
    return papers_of(plugin)


def cited(plugins: Iterable[type[Plugin]]) -> list[Paper]:
    """Return the papers of several plugins without duplicates: bibliography entries first, in file order.

    Raise `UserError` for an unknown key.
    """
    wanted = {paper.key: paper for plugin in plugins for paper in citable(plugin)}
    return [wanted.pop(key) for key in papers() if key in wanted] + list(wanted.values())


def _found(key: str) -> Paper | None:
    if key in papers():
        return papers()[key]
    if found := IDENTIFIER.fullmatch(key):
        arxiv, doi, url = (found[kind] or "" for kind in ("arxiv", "doi", "url"))
        return Paper(key, key, arxiv=arxiv, doi=doi, url=url)
    return None


def _paper(key: str, fields: Mapping[str, str], bibtex: str) -> Paper:
    venue = next((fields[name] for name in VENUES if name in fields), "arXiv" if "eprint" in fields else "")
    return Paper(
        key=key,
        title=re.sub("[{}]", "", fields.get("title", "")),  # braces only keep capitals in BibTeX
        authors=tuple(name.partition(",")[0].strip("{}") for name in fields.get("author", "").split(" and ") if name),
        year=fields.get("year", ""),
        venue=venue,
        doi=fields.get("doi", ""),
        arxiv=fields.get("eprint", ""),
        url=fields.get("url", ""),
        bibtex=bibtex,
    )
