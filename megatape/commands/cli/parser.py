"""Parser of the command line that suggests corrections in its errors."""

import argparse
import sys
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Never

from megatape.errors import ExitStatus, UserError
from megatape.errors.suggestions import choose_one, did_you_mean


class Parser(argparse.ArgumentParser):
    """Parser that suggests the nearest known word for an unknown one.

    Args:
        listing: Listing of commands, which replaces argparse's help on commands and options. None: argparse's help.
        arguments: Keyword arguments of argparse's parser.

    Attributes:
        commands: Parsers of the commands, or None if this parser has options instead.
        options: Options and positional arguments, without --help.
        completions: Values that shells complete, by the `dest` of an option.
    """

    def __init__(self, *, listing: str | None = None, **arguments: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **arguments)
        self.commands: argparse._SubParsersAction[Parser] | None = None
        self.options: list[argparse.Action] = []
        self.completions: dict[str, tuple[str, ...]] = {}
        self._listing = listing
        self._words: list[str] = []

    def format_help(self) -> str:
        """Return the text of --help."""
        if self._listing is None:
            return super().format_help()
        return f"{self.format_usage()}\n{self.description}\n\n{self._listing}\n"

    def add_commands(self) -> "argparse._SubParsersAction[Parser]":
        """Make this a parser of commands. Add their parsers to the result."""
        self.commands = self.add_subparsers(metavar="COMMAND", required=True)
        return self.commands

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse words, and raise UserError for unknown ones. argparse calls this once per level of commands."""
        if args is None:
            args = sys.argv[1:]
        self._words = list(args)
        parsed, unknown = super().parse_known_args(self._words, namespace)
        if unknown:
            self.error(f"unexpected: {' '.join(unknown)}")
        return parsed, unknown

    def error(self, message: str) -> Never:
        """Raise UserError with one line. If the command is missing, print the help and exit.

        Args:
            message: Message of argparse, used if neither a word is unknown nor a flag is missing.
        """
        names: list[str] = list(self.commands.choices) if self.commands is not None else []
        if names and not self._words:
            self.print_help(sys.stderr)
            self.exit(ExitStatus.USER_ERROR)

        words = list(takewhile(lambda word: word != "--", self._words))
        flags = self._flags()
        remedy = f"see `{self.prog} --help`"
        unknown_flag = _find_unknown_flag(words, flags)
        missing_flag = self._find_missing_flag(words)
        if unknown_flag is not None:
            message = f"{unknown_flag} is not an option"
            remedy = f"{did_you_mean(unknown_flag, flags)}{remedy}"
        elif names and words and words[0] not in names:
            message = f"{words[0]} is not a command"
            remedy = choose_one(words[0], names)
        elif missing_flag is not None:
            message = f"unexpected: {words[0]}"
            remedy = f"did you mean {missing_flag} {words[0]}? {remedy}"
        raise UserError(f"{message}: {remedy}")

    def _flags(self) -> list[str]:
        """Return the flags of all options."""
        flags = ["--help"]
        for action in self.options:
            flags += action.option_strings
        return flags

    def _find_missing_flag(self, words: Sequence[str]) -> str | None:
        """Return the flag that probably belongs before the first word: the only required flag that is missing."""
        has_positionals = any(not action.option_strings for action in self.options)
        if self.commands or has_positionals or not words or words[0].startswith("-"):
            return None
        given_flags = {word.partition("=")[0] for word in words}
        missing: list[str] = []
        for action in self.options:
            if action.required and given_flags.isdisjoint(action.option_strings):
                missing.append(action.option_strings[0])
        if len(missing) != 1:
            return None
        return missing[0]


def _find_unknown_flag(words: Sequence[str], known: Sequence[str]) -> str | None:
    """Return the first flag that is neither known nor the beginning of a known one, or None."""
    for word in words:
        flag = word.partition("=")[0]
        # A word with spaces is a quoted value, such as the options of another program.
        is_flag = flag.startswith("--") and " " not in flag
        if is_flag and not any(name.startswith(flag) for name in known):
            return flag
    return None
