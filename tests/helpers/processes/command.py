"""Commands that run in the test's process, and what tests expect of their results."""

import signal
from collections.abc import Callable

from megatape.commands.cli.main import main
from megatape.reliability.signals import STOPPING

Result = tuple[int, str, str]
Command = Callable[..., Result]


def run_command(*words: object) -> int:
    """Run `megatape WORDS` in this process, for fixtures that tests share; tests use the fixture `command`.

    Returns:
        Exit status of the command.
    """
    handlers = {number: signal.getsignal(number) for number in STOPPING}
    try:
        return main([str(word) for word in words])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)  # commands ignore signals at the end of their process


def assert_refused(result: Result, message: str) -> None:
    """Check that a command exited with status 2, and that its error contains a text."""
    status, _, errors = result
    assert status == 2, errors
    assert errors.startswith("error: "), errors
    assert message in errors, errors
