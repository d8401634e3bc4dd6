"""Prints a shell script that completes commands and options."""

import re
from typing import Any, Literal

from megatape.commands.cli.parser import Parser
from megatape.utils.values.options import CommandOptions, option

EXAMPLE = "megatape completion bash"

# Matches placeholders of options whose values are paths.
PATHS = re.compile(r"FILE|FOLDER|DIR|OUT|RUN|CHECKPOINT|CONFIG")


class Options(CommandOptions):
    """The shell.

    Attributes:
        shell: your shell
    """

    shell: Literal["bash", "zsh", "fish"] = option(positional=True)


def run(options: Options) -> None:
    """Print a script for the shell. It completes without starting Python."""
    import shtab

    from megatape.commands.cli.command_line import command_line

    root = command_line()
    _add_values(root, shtab.FILE)
    print(shtab.complete(root, options.shell))


def _add_values(parser: Parser, paths: dict[str, Any]) -> None:
    """Declare the values of all options to shtab.

    Args:
        parser: Parser, with the parsers of its commands.
        paths: shtab's completion of paths.
    """
    for action in parser.options:
        metavar = str(action.metavar)
        names = parser.completions.get(action.dest)
        if names:
            action.choices = names
        elif metavar.startswith("{"):
            action.choices = metavar.strip("{}").split(",")
        elif PATHS.search(metavar):
            action.complete = paths  # type: ignore[attr-defined]
    if parser.commands is None:
        return
    for command in parser.commands.choices.values():
        _add_values(command, paths)
