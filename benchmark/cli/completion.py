"""Shell completion: commands, options, settings and the names that settings choose from."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

import argcomplete

from fedspan.benchmark.cli.choices import names, settings

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
            if not action.option_strings:
                action.completer = words_for  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)


def words_for(prefix: str, **context: object) -> list[str]:
    """Return the words that begin with `prefix`, such as ``algorithm=fedprox``."""
    name, equals, _ = prefix.partition("=")
    found = [f"{name}={choice}" for choice in names(name)] if equals else [f"{setting}=" for setting in settings()]
    return [word for word in found if word.startswith(prefix)]
