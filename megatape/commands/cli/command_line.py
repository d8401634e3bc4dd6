"""Builds the parser of all commands from their table."""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial

from megatape.commands.cli.arguments import add_options
from megatape.commands.cli.command import Command, load_command
from megatape.commands.cli.parser import Parser
from megatape.commands.cli.running import run_command
from megatape.commands.cli.table import COMMANDS, COMMANDS_BY_USE, is_group, sentence

DESCRIPTION = "Distributed pretraining of language models on DeepSpeed."


def command_line(words: Sequence[str] | None = None) -> Parser:
    """Return the parser of all commands. The parsed namespace has `run`, a function that takes the namespace.

    Args:
        words: Words to parse. Only commands named there get their options, because each of them has to be imported. None: all
            commands get their options.
    """
    root = Parser(prog="megatape", description=DESCRIPTION, listing=_list_by_use())
    version = root.add_argument("--version", action=ShowVersion, nargs=0, help="show version and commit, and exit")
    root.options.append(version)
    groups = {"": root.add_commands()}
    for name, description in COMMANDS.items():
        group, _, word = name.rpartition(" ")
        listing = _list_group(name) if is_group(name) else None
        parser = groups[group].add_parser(word, help=description, description=sentence(description), listing=listing)
        if is_group(name):
            groups[name] = parser.add_commands()
        elif words is None or word in words:
            command = load_command(name)
            parser.epilog = _epilog(command)
            add_options(parser, command.options)
            parser.set_defaults(run=partial(run_command, command.options, command.run))
    return root


def _epilog(command: Command) -> str:
    """Return the end of a command's help: lists of names that its options accept, and an example."""
    lines: list[str] = []
    for heading, descriptions in command.options.lists.items():
        lines += [f"{heading}:", *_list_names(descriptions), ""]
    lines += ["example:", f"  {command.example}"]
    return "\n".join(lines)


def _list_by_use() -> str:
    """Return the listing of all commands and groups, below their use."""
    width = max(len(name) for name in COMMANDS if " " not in name)
    lines: list[str] = []
    for use, commands in COMMANDS_BY_USE.items():
        names = {name: description for name, description in commands.items() if " " not in name}
        lines += [f"{use}:", *_list_names(names, width)]
    lines += ["", "`megatape COMMAND --help` shows options and an example of a command."]
    return "\n".join(lines)


def _list_group(group: str) -> str:
    """Return the listing of a group's commands."""
    names: dict[str, str] = {}
    for name, description in COMMANDS.items():
        if name.startswith(f"{group} "):
            names[name.removeprefix(f"{group} ")] = description
    lines = ["commands:", *_list_names(names)]
    lines += ["", f"`megatape {group} COMMAND --help` shows options and an example of a command."]
    return "\n".join(lines)


def _list_names(descriptions: Mapping[str, str], width: int = 0) -> list[str]:
    """Return an indented line for each name, with its description. width: Minimum width of the first column."""
    width = max(width, *(len(name) for name in descriptions))
    return [f"  {name:{width}}  {description}" for name, description in descriptions.items()]


class ShowVersion(argparse.Action):
    """Prints the version and exits. Modules are imported only then, because commands do not need them."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from megatape.software import package_version

        print(f"megatape {package_version()}")
        parser.exit()
