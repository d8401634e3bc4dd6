"""Numbers in environment variables."""

import os

from megatape.errors import UserError


def read_int(name: str, default: int | None = None) -> int:
    """Read a number from the environment.

    Args:
        name: Name of the variable.
        default: Value of a missing variable. None: it must be there.

    Raises:
        UserError: The variable is missing or not an integer.
    """
    text = os.environ.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text)  # type: ignore[arg-type]  # None is rejected below like any other value that is not a number
    except (TypeError, ValueError):
        raise UserError(f"{name} is {text!r}: expected an integer") from None
