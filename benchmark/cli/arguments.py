"""The parser of a command's own arguments: its errors are one line that says what to write instead."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from fedspan.benchmark.errors import UserError, suggestion


class Parser(argparse.ArgumentParser):
    """Parser that raises `UserError` instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        """Raise `UserError`."""
        raise UserError(f"{self.prog.removeprefix('fedspan ')}: {message}; '{self.prog} --help' has the details")

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Return the arguments in `words`; raise `UserError` for an unknown option and for one with an empty value."""
        for word in words:
            if word.startswith("-") and word.split("=")[0] not in self._option_string_actions:
                multirun = word in ("-m", "--multirun")
                other = "; only 'fedspan run' has it" if multirun else "; settings are written name=value"
                near = suggestion(word.split("=")[0], self._option_string_actions)
                raise UserError(f"unknown option '{word}'{near or other}")
        arguments = self.parse_intermixed_args(words)
        for option, action in self._option_string_actions.items():
            if getattr(arguments, action.dest, None) == "":
                self.error(f"{option} has an empty value")
        return arguments
