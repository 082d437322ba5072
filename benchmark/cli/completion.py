"""Shell completion: commands, options, settings and the names that settings choose from."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import argcomplete

from fedspan.benchmark.cli.choices import FOLDERS, names, settings
from fedspan.benchmark.registry import KINDS

if TYPE_CHECKING:
    from fedspan.benchmark.cli.main import Command


def show(arguments: argparse.Namespace) -> int:
    """Print the completion script of a shell."""
    print(argcomplete.shellcode(["fedspan"], shell=arguments.shell))
    return 0


def complete(commands: Mapping[str, Command]) -> None:
    """Print the completions requested by the shell, and end the process."""
    parser = argparse.ArgumentParser(prog="fedspan")
    listed = parser.add_subparsers()
    for name, command in commands.items():
        mine = listed.add_parser(name, help=command.about)
        command.arguments(mine)
        for action in mine._actions:
            if action.dest in COMPLETERS:  # argparse knows the choices of the others
                action.completer = COMPLETERS[action.dest]  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)


def words_for(prefix: str, **context: object) -> list[str]:
    """Return the words that begin with `prefix`, such as ``algorithm=fedprox``."""
    if found := re.fullmatch(r"((\w+)=\[?(?:[^\[\]]*,)?)[^\[\],]*", prefix):  # the last of a list of names
        words = [f"{found[1]}{choice}" for choice in names(found[2])]
    else:
        words = [f"{setting}=" for setting in settings()]
    return [word for word in words if word.startswith(prefix)]


def names_for(prefix: str, **context: object) -> list[str]:
    """Return the kinds and names of plugins, and else the settings, that begin with `prefix`."""
    known = {*KINDS, *KINDS.values(), "methods", *(name for setting in FOLDERS for name in names(setting))}
    return sorted(name for name in known if name.startswith(prefix)) or words_for(prefix)


COMPLETERS = {"settings": words_for, "words": names_for}
