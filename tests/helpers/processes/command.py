"""What the fixture `command` is, and what tests expect of its results."""

from collections.abc import Callable

Result = tuple[int, str, str]
Command = Callable[..., Result]


def assert_refused(result: Result, message: str) -> None:
    """Check that a command exited with status 2, and that its error contains a text."""
    status, _, errors = result
    assert status == 2, errors
    assert errors.startswith("error: "), errors
    assert message in errors, errors
