"""Reading integers from environment variables."""

import os

from megatape.errors import UserError


def read_int(name: str, default: int | None = None) -> int:
    """Read an integer from the environment.

    Args:
        name: Name of the variable.
        default: Result if the variable is missing, or None if that is an error.

    Raises:
        UserError: The variable is missing or not an integer.
    """
    text = os.environ.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text)  # type: ignore[arg-type]  # None raises a TypeError.
    except (TypeError, ValueError):
        raise UserError(f"{name} is {text!r}: expected an integer") from None
