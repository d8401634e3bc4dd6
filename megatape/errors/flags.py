"""Marks options in error messages, so that a command can show their flags.

    raise UserError(f"{flag('output')} is missing: name a folder, or give {flag('dry_run')}")

A command shows "--output is missing: name a folder, or give --dry-run". From Python, where an option is an argument or a field,
the message is "output is missing: name a folder, or give `dry_run`".
"""

import re
from collections.abc import Callable

# Characters before and after the name of a marked option. Unicode reserves them for internal use: no other text has them.
BEGIN = "\ufdd0"
END = "\ufdd1"
MARKED_OPTION = re.compile(rf"{BEGIN}(\w+){END}")


def flag(option: str) -> str:
    """Mark an option in the message of a UserError.

    Args:
        option: Name of the option, such as "dry_run".
    """
    return f"{BEGIN}{option}{END}"


def show_options(message: str, flag_of: Callable[[str], str | None]) -> str:
    """Replace the marked options of a message by what the user knows.

    Args:
        message: Message with options marked by `flag`.
        flag_of: Returns the flag of an option, or None if it has none.

    Returns:
        The message with flags. An option without one is shown by its name, in backquotes unless it begins the message.
    """

    def shown(match: re.Match[str]) -> str:
        option = match[1]
        known_flag = flag_of(option)
        if known_flag is not None:
            return known_flag
        if match.start() == 0:
            return option
        return f"`{option}`"

    return MARKED_OPTION.sub(shown, message)


def name_options(message: str) -> str:
    """Replace the marked options of a message by their names, for Python."""
    return show_options(message, lambda option: None)
