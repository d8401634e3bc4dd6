"""Lists of names in options."""

from collections.abc import Collection

from megatape.errors import UserError
from megatape.errors.suggestions import choose_one


def parse_names(option: str, text: str, known: Collection[str], noun: str) -> list[str]:
    """Split a list such as "rope,tape" into its names.

    Args:
        option: Name of the option, for messages.
        text: Names separated by commas.
        known: Names to choose from.
        noun: Kind of name, such as "an encoding".

    Raises:
        UserError: A name is unknown or repeated.
    """
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise UserError(f"{option}: {name!r} is not {noun}: {choose_one(name, known)}")
        if names.count(name) > 1:
            raise UserError(f"{option}: {name} is listed twice")
    return names
