"""Parser of all commands, made from their table."""

import argparse
from collections.abc import Sequence
from functools import partial

from megatape.commands.cli.arguments import add_options
from megatape.commands.cli.command import Command, load_command
from megatape.commands.cli.parser import Parser
from megatape.commands.cli.running import run_command
from megatape.commands.cli.table import COMMANDS, COMMANDS_BY_USE, is_group, sentence

DESCRIPTION = "Distributed pretraining of language models on DeepSpeed."


def command_line(words: Sequence[str] | None = None) -> Parser:
    """Return the parser of all commands. Its namespace has `run`, a function that runs the command with the namespace.

    Args:
        words: Words that it will parse. Only commands named there get their options, because each takes an import. By default
            all commands get them.
    """
    root = Parser(prog="megatape", description=DESCRIPTION, listing=_listing())
    version = root.add_argument("--version", action=ShowVersion, nargs=0, help="show version and commit, and exit")
    root.options.append(version)
    groups = {"": root.add_commands()}
    for name, description in COMMANDS.items():
        group, _, word = name.rpartition(" ")
        parser = groups[group].add_parser(word, help=description, description=sentence(description))
        if is_group(name):
            groups[name] = parser.add_commands()
        elif words is None or word in words:
            command = load_command(name)
            parser.epilog = _epilog(command)
            add_options(parser, command.options)
            parser.set_defaults(run=partial(run_command, command.options, command.run))
    return root


def _epilog(command: Command) -> str:
    """Return the end of a command's help: lists of the names that its options take, and an example."""
    lines: list[str] = []
    for heading, descriptions in command.options.lists.items():
        width = max(len(name) for name in descriptions)
        lines.append(f"{heading}:")
        for name, description in descriptions.items():
            lines.append(f"  {name:{width}}  {description}")
        lines.append("")
    lines += ["example:", f"  {command.example}"]
    return "\n".join(lines)


def _listing() -> str:
    """Return the commands of one word by use, a line each, and what to ask next."""
    names = [name for name in COMMANDS if " " not in name]
    width = max(len(name) for name in names)
    lines: list[str] = []
    for use, commands in COMMANDS_BY_USE.items():
        lines.append(f"{use}:")
        for name, description in commands.items():
            if " " not in name:
                lines.append(f"  {name:{width}}  {description}")
    lines += ["", "`megatape COMMAND --help` shows the options and an example of a command."]
    return "\n".join(lines)


class ShowVersion(argparse.Action):
    """Prints the version. Its modules are imported here, because other commands do not need them."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from megatape.utils.software import package_version

        print(f"megatape {package_version()}")
        parser.exit()
