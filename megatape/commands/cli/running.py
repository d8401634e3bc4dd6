"""Runs a command, and turns its errors into messages and exit statuses.

0    success
1    a child process failed; or an error in the program or the machine, shown with a traceback
2    an error the user can fix: arguments, configuration, files, a missing package
130  interrupted
141  the program reading the output has ended, such as `head`

Training has further statuses (docs/faults.md).
"""

import argparse
import logging
import os
import select
import sys
import time
from collections.abc import Callable

from megatape.commands.cli.arguments import flag_of
from megatape.commands.cli.extras import EXTRAS
from megatape.distributed.launch.launchers import launcher_of_environment
from megatape.errors import ExitStatus, UserError, marked_message
from megatape.errors.flags import show_options
from megatape.imports import import_given
from megatape.utils.files.project_files import install_command
from megatape.utils.text.terminal import RED, RESET, has_color
from megatape.utils.text.url_secrets import mask_secrets
from megatape.utils.values.options import CommandOptions, Options, read_options

LOG = logging.getLogger(__name__)

# File descriptor.
STANDARD_OUTPUT = 1
# Exit status, as shells number the end by SIGPIPE.
OUTPUT_CLOSED = 141

# Seconds before ranks other than the first one on a host print their error. If the first rank has the same error, the launcher
# ends the others in this time, so that the error is printed once.
FIRST_RANK_LEAD = 5.0


def run_command(kind: type[Options], run: Callable[[Options], int | None], args: argparse.Namespace) -> int:
    """Run a command with parsed options.

    Args:
        kind: Type of the options.
        run: Function of the command. It prints its results, and returns an exit status or None for success.
        args: Parsed arguments. Unknown names are ignored.

    Returns:
        The exit status.
    """
    try:
        return _run(kind, run, args)
    except BrokenPipeError:
        if not _is_output_closed():
            raise
        _discard_output()
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
        command = install_command(EXTRAS[error.name])
        return fail(f"{error}: install it with: {command}", ExitStatus.USER_ERROR)
    except ChildProcessError as error:
        return fail(str(error), ExitStatus.DIED)
    except UnicodeEncodeError as error:
        if error.reason != "surrogates not allowed":
            raise
        return fail(f"{error.object!r} is not UTF-8, as a library needs it: rename it", ExitStatus.USER_ERROR)
    except UserError as error:
        LOG.debug("raised here:", exc_info=True)
        return fail(show_flags(kind, error), error.status)


def _run(kind: type[Options], run: Callable[[Options], int | None], args: argparse.Namespace) -> int:
    """Import the user's modules, run a command, and return the exit status."""
    # Import the modules before validating other options, whose types look up names in the registry.
    for text in getattr(args, "imports", ()):
        import_given(text)
    status = run(read_options(kind, vars(args)))
    sys.stdout.flush()
    if status is None:
        return ExitStatus.DONE
    return status


def _is_output_closed() -> bool:
    """Whether the program reading standard output has ended."""
    poll = select.poll()
    poll.register(STANDARD_OUTPUT, 0)
    return any(state & (select.POLLERR | select.POLLHUP) for _, state in poll.poll(0))


def _discard_output() -> None:
    """Redirect standard output to nowhere, where Python writes its buffer when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), STANDARD_OUTPUT)


def show_flags(kind: type[CommandOptions], error: UserError) -> str:
    """Return the message of an error with the flags of a command's options.

    Args:
        kind: Type of the options.
        error: Error that the command raised.
    """

    def flag_or_none(name: str) -> str | None:
        field = kind.model_fields.get(name)
        if field is None:
            return None
        return flag_of(name, field)

    return show_options(marked_message(error), flag_or_none)


def fail(text: str, status: int) -> int:
    """Print an error, and return the status. Ranks other than the first one on a host wait before printing."""
    launcher = launcher_of_environment()
    if launcher is not None:
        local_rank = os.environ.get(launcher.variables.local_rank, "0")
        if local_rank != "0":
            time.sleep(FIRST_RANK_LEAD)
    label = f"{RED}error:{RESET}" if has_color(sys.stderr) else "error:"
    print(f"{label} {mask_secrets(text)}", file=sys.stderr, flush=True)
    return status
