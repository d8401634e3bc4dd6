"""megatape completion: `megatape completion bash`."""

import re
from typing import Any, Literal

from megatape.commands.parser import Parser
from megatape.utils.options import CommandOptions, option

PATHS = re.compile(r"FILE|FOLDER|DIR|OUT|RUN|CHECKPOINT|CONFIG")  # in the name of an option's value


class Options(CommandOptions):
    """The shell.

    Attributes:
        shell: your shell
    """

    shell: Literal["bash", "zsh", "fish"] = option(positional=True)


def run(options: Options) -> None:
    """Print a script for the shell, which completes without starting Python."""
    import shtab

    from megatape.commands.table import parser

    root = parser()
    _add_values(root, shtab.FILE)
    print(shtab.complete(root, options.shell))


def _add_values(parser: Parser, paths: dict[str, Any]) -> None:
    """Tell shtab the values of options: the names that their help lists, or `paths`."""
    for action in parser.options:
        value = str(action.metavar)
        if names := parser.completions.get(action.dest):
            action.choices = names
        elif value.startswith("{"):
            action.choices = value.strip("{}").split(",")
        elif PATHS.search(value):
            action.complete = paths  # type: ignore[attr-defined]
    for command in parser.commands.choices.values() if parser.commands else ():
        _add_values(command, paths)
