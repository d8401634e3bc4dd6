"""Running commands in the test's process, and checking their results."""

import signal
from collections.abc import Callable

from megatape.commands.cli.main import main
from megatape.reliability.signals import STOPPING

Result = tuple[int, str, str]
Command = Callable[..., Result]


def run_command(*words: object) -> int:
    """Run `megatape WORDS` in this process, for shared fixtures. Tests use the fixture `command` instead.

    Returns:
        Exit status of the command.
    """
    handlers = {number: signal.getsignal(number) for number in STOPPING}
    try:
        return main([str(word) for word in words])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)  # Commands ignore signals while their process ends.


def assert_refused(result: Result, message: str) -> None:
    """Check that a command exited with status 2, printing an error that contains this text."""
    status, _, errors = result
    assert status == 2, errors
    assert errors.startswith("error: "), errors
    assert message in errors, errors
