"""Entry point of the program: `megatape COMMAND ...`."""

import argparse
import io
import shlex
import sys
from contextlib import suppress

from megatape.commands.cli.command_line import command_line
from megatape.commands.cli.running import fail
from megatape.errors import ExitStatus, UserError
from megatape.utils.text.terminal import show_log


def main(words: list[str] | None = None) -> int:
    """Run the command in `words`, by default sys.argv. Returns the exit status."""
    if words is None:
        words = sys.argv[1:]
    # Drop the option that `deepspeed` adds. It also sets LOCAL_RANK in the environment.
    words = [word for word in words if not word.startswith("--local_rank=")]
    _accept_any_text()
    typed = shlex.join(["megatape", *words])
    try:
        args = command_line(words).parse_args(words, argparse.Namespace(typed=typed))
    except UserError as error:
        return fail(str(error), error.status)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return ExitStatus.INTERRUPTED
    show_log(getattr(args, "verbose", False))
    return args.run(args)


def _accept_any_text() -> None:
    """Keep unusual text in standard input or output from ending a command.

    Standard output escapes characters that its encoding lacks, such as an umlaut on an ASCII terminal, as Python's standard
    error does. Bytes in standard input that are not valid text become lone surrogates.
    """
    _set_error_handler(sys.stdin, "surrogateescape")
    _set_error_handler(sys.stdout, "backslashreplace")


def _set_error_handler(stream: object, name: str) -> None:
    if isinstance(stream, io.TextIOWrapper):
        with suppress(io.UnsupportedOperation):  # Raised if the calling program has already read from standard input.
            stream.reconfigure(errors=name)
