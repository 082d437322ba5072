"""`fedspan cite`: BibTeX of this package, and of the papers behind plugins or a board."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from fedspan.benchmark.bibliography import cited, suite
from fedspan.benchmark.cli.accepted import accepted
from fedspan.benchmark.errors import UserError, did_you_mean
from fedspan.benchmark.registry import Plugin, all_plugins
from fedspan.benchmark.spec.overrides import axes_of
from fedspan.benchmark.spec.plan import plan_grid


def show(arguments: argparse.Namespace) -> int:
    """Print the BibTeX entries, ready for a .bib file."""
    entries = [suite()]
    entries += [paper.bibtex or f"% {paper.link}" for paper in cited(_asked(arguments.words))]
    print("\n\n".join(entries))
    return 0


def _asked(words: Sequence[str]) -> Iterator[type[Plugin]]:
    settings = [word for word in words if "=" in word and not word.startswith("board=")]
    accepted(settings, ("board", "plugins"), "a citation is of a plugin or of a whole board")
    known: dict[str, type[Plugin]] = {plugin.name: plugin for plugin in all_plugins()}
    for word in (word for word in words if word not in settings):
        if word == "all":
            yield from all_plugins()
        elif word.startswith("board="):
            for planned in plan_grid(axes_of([word])):
                yield from map(type, planned.cell.plugins)
        elif word in known:
            yield known[word]
        else:
            raise UserError(f"cannot cite '{word}'{did_you_mean(word, [*known, 'all'])}")
