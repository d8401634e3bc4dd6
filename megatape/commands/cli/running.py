"""Running a command: its options, its output, and the message and exit status of an error.

`run_command` is the one place that turns errors into messages and exit statuses:

0    success
1    a child process failed, or an error of the program or the machine, which shows its traceback
2    an error the user can fix: arguments, configuration, files, a missing package
130  interrupted
141  the program that reads the output has ended, such as `head`

Training has further statuses of its own (docs/faults.md).
"""

import argparse
import logging
import os
import re
import select
import sys
import time
from collections.abc import Callable, Container

from megatape.commands.cli.arguments import flag_of
from megatape.commands.cli.extras import EXTRAS
from megatape.distributed.launchers import launcher_of_environment
from megatape.errors import ExitStatus, UserError
from megatape.imports import import_given
from megatape.utils.options import CommandOptions, Options, read_options
from megatape.utils.project_files import install_command
from megatape.utils.terminal import RED, RESET, has_colour
from megatape.utils.url_secrets import mask_secrets

LOG = logging.getLogger(__name__)

OUTPUT_CLOSED = 141

# Seconds until ranks other than the first one of a host show their error. If the first rank ends with the same error, the
# launcher ends them meanwhile, and the error is shown once.
FIRST_RANK_LEAD = 5.0


def run_command(kind: type[Options], run: Callable[[Options], int | None], args: argparse.Namespace) -> int:
    """Run a command with the options that were parsed.

    Args:
        kind: Type of its options.
        run: Function of the command, which prints its results, and returns an exit status or None for success.
        args: Parsed arguments. Those that are no option are ignored.

    Returns:
        The exit status.
    """
    try:
        return _run(kind, run, args)
    except BrokenPipeError:
        if not _output_has_ended():
            raise
        return OUTPUT_CLOSED
    except KeyboardInterrupt:
        text = "interrupted"
        if kind.resumable:
            text += "; run the same command again to continue"
        print(text, file=sys.stderr)
        return ExitStatus.INTERRUPTED
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        return fail(f"{error}: install it by: {install_command(EXTRAS[error.name])}", ExitStatus.USER_ERROR)
    except ChildProcessError as error:
        return fail(str(error), ExitStatus.DIED)
    except UnicodeEncodeError as error:
        if error.reason != "surrogates not allowed":
            raise
        return fail(f"{error.object!r} is not UTF-8, as a library needs it: rename it", ExitStatus.USER_ERROR)
    except UserError as error:
        LOG.debug("raised here:", exc_info=True)
        return fail(name_flags(kind, str(error), vars(args)), error.status)


def _run(kind: type[Options], run: Callable[[Options], int | None], args: argparse.Namespace) -> int:
    """Run a command. Returns the exit status."""
    # The user's modules come first: the types of other options look names up in megatape/registry.py.
    for text in getattr(args, "imports", ()):
        import_given(text)
    status = run(read_options(kind, vars(args)))
    sys.stdout.flush()
    if status is None:
        return ExitStatus.DONE
    return status


def _output_has_ended() -> bool:
    """Whether the reader of standard output has gone. Python then writes the rest to nowhere when it ends."""
    standard_output = 1
    poll = select.poll()
    poll.register(standard_output, 0)
    ended = any(state & (select.POLLERR | select.POLLHUP) for _, state in poll.poll(0))
    if ended:
        os.dup2(os.open(os.devnull, os.O_WRONLY), standard_output)
    return ended


def name_flags(kind: type[CommandOptions], message: str, given: Container[str]) -> str:
    """Return a message with flags instead of the names of options, at its beginning or in backquotes.

    The first word of a message may be a name that is no option there: "data runs/x holds prompts" may be about the data of a
    checkpoint. It is an option if the option was given or has a default, or if the message says that it is missing.

    Args:
        kind: Type of the options.
        message: Such as "max_documents is 0: give at least 1, or `dry_run`".
        given: Names of the options that were given.
    """

    def flag(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        field = kind.model_fields.get(name)
        if field is None:
            return found[0]
        is_unset = name not in given and field.default in (None, ())
        is_told_missing = message.startswith((f"{name}:", f"{name} is missing"))
        if found[1] and is_unset and not is_told_missing:
            return found[0]
        return flag_of(name, field) or found[0]

    return re.sub(r"^(\w+)(?=[ :,])|`(\w+)`", flag, message)


def fail(text: str, status: int) -> int:
    """Print an error, on the first rank of a host before the others. Returns the status."""
    launcher = launcher_of_environment()
    if launcher is not None:
        local_rank = os.environ.get(launcher.variables[2], "0")
        if local_rank != "0":
            time.sleep(FIRST_RANK_LEAD)
    label = "error:"
    if has_colour(sys.stderr):
        label = f"{RED}error:{RESET}"
    print(f"{label} {mask_secrets(text)}", file=sys.stderr, flush=True)
    return status
