"""Parsers of commands from their options."""

import argparse
import sys
from itertools import takewhile
from typing import Any, Never, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from megatape.config.annotations import choices, unwrapped
from megatape.errors import ExitStatus, UserError, choose_one, did_you_mean
from megatape.utils.options import CommandOptions, argument_of


class Parser(argparse.ArgumentParser):
    """A parser whose errors name what comes nearest to a word that it does not know.

    Attributes:
        commands: The parsers of its commands, None for a parser of options.
        options: What it takes besides --help.
        completions: Names that shells complete as values, by the `dest` of an option.
    """

    def __init__(self, **words: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **words)
        self.commands: argparse._SubParsersAction[Parser] | None = None
        self.options: list[argparse.Action] = []
        self.completions: dict[str, tuple[str, ...]] = {}
        self._words: list[str] = []

    def add_commands(self) -> "argparse._SubParsersAction[Parser]":
        """Let this parser have commands, which are added to the result."""
        self.commands = self.add_subparsers(metavar="COMMAND", required=True)
        return self.commands

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse, which calls it for every command in turn; here each of them refuses the words that it does not know."""
        self._words = [*(sys.argv[1:] if args is None else args)]
        found, rest = super().parse_known_args(self._words, namespace)
        if rest:
            self.error(f"unexpected: {' '.join(rest)}")
        return found, rest

    def error(self, message: str) -> Never:
        """Raise UserError that says in one line what is wrong; without any word, show the commands and exit."""
        names = [] if self.commands is None else [*self.commands.choices]
        if names and not self._words:
            self.print_help(sys.stderr)
            self.exit(ExitStatus.USER_ERROR)
        words = [*takewhile(lambda word: word != "--", self._words)]
        known = ["--help", *(flag for action in self.options for flag in action.option_strings)]
        flags = [word.partition("=")[0] for word in words if word.startswith("--")]
        unknown = next((flag for flag in flags if " " not in flag and not any(each.startswith(flag) for each in known)), None)
        remedy = f"see `{self.prog} --help`"
        flag = self._value_without_flag(words)
        if unknown:
            message = f"{unknown} is not an option"
            remedy = f"{did_you_mean(unknown, known)}{remedy}"
        elif names and words[0] not in names:
            message = f"{words[0]} is not a command"
            remedy = choose_one(words[0], names)
        elif flag:
            message = f"unexpected: {words[0]}"
            remedy = f"did you mean {flag} {words[0]}? {remedy}"
        raise UserError(f"{message}: {remedy}")

    def _value_without_flag(self, words: list[str]) -> str:
        """Return the flag whose value the first word probably is: the only missing required one, or "" if there is none."""
        has_positionals = any(not action.option_strings for action in self.options)
        if self.commands or has_positionals or not words or words[0].startswith("-"):
            return ""
        given = {word.partition("=")[0] for word in words}
        required = [action.option_strings for action in self.options if action.required]
        missing = [flags[0] for flags in required if given.isdisjoint(flags)]
        return missing[0] if len(missing) == 1 else ""


def add_options(parser: Parser, kind: type[CommandOptions]) -> None:
    """Declare the options of a command. argparse leaves their values as text; their types check it (`read_options`)."""
    described = {name: field for name, field in kind.model_fields.items() if field.description is not None}
    groups = {name: names for names in (*kind.at_most_one, *kind.exactly_one) for name in names}
    for name in described:
        names = groups.get(name, (name,))
        target: argparse._ActionsContainer = parser
        if name != names[0]:
            continue  # it is declared beside the first of its group, so that the usage shows the group
        if name in groups:
            target = parser.add_mutually_exclusive_group(required=names in kind.exactly_one)
        for each in names:
            action = target.add_argument(flag_of(each, described[each]) or each, **_arguments(each, described[each]))
            parser.options.append(action)
            parser.completions[action.dest] = tuple(argument_of(described[each]).get("completions", ()))


def flag_of(name: str, field: FieldInfo) -> str | None:
    """The flag of an option, None if it is given by its position."""
    argument = argument_of(field)
    return None if argument.get("positional") else argument.get("flag") or f"--{name.replace('_', '-')}"


def default_of(field: FieldInfo) -> str:
    """The default of an option as one would write it, empty if there is none."""
    if field.is_required() or field.default in (None, False, ()):
        return ""
    return ",".join(map(str, field.default)) if isinstance(field.default, tuple) else str(field.default)


def metavar_of(field: FieldInfo) -> str | None:
    """What stands for the value of an option in its usage, None for the name of the option."""
    values = choices(field.annotation, field.metadata)
    return argument_of(field).get("metavar") or (f"{{{','.join(values)}}}" if values else None)


def _arguments(name: str, field: FieldInfo) -> dict[str, Any]:
    """Keywords of argparse's add_argument."""
    argument, (annotation, metadata) = argument_of(field), unwrapped(field.annotation, field.metadata)
    text = f"{field.description} (default {default})" if (default := default_of(field)) else str(field.description)
    words: dict[str, Any] = {"default": argparse.SUPPRESS, "help": text.replace("%", "%%")}
    if annotation is bool:
        return {**words, "action": "store_true"}
    words["metavar"] = metavar_of(field)
    if argument.get("repeatable"):
        words["action"] = "append"
    elif get_origin(annotation) is tuple and not any(isinstance(each, BeforeValidator) for each in metadata):
        words["nargs"] = "+" if field.is_required() or not argument.get("positional") else "*"
    if not argument.get("positional"):
        words |= {"required": field.is_required(), "dest": name}
    return words | {key: argument[key] for key in ("nargs", "const") if key in argument}
