"""Checks text that becomes part of a script, a command line or a file. Each check returns the text."""

import re

from megatape.errors import UserError


def check_line(text: str) -> str:
    """Check a value that becomes part of a line in a script, a host file or the environment.

    Raises:
        UserError: The text has a control character, such as a line break, after which a shell would read another command.
    """
    control_character = re.search(r"[\x00-\x1f\x7f-\x9f]", text)
    if control_character:
        raise UserError(f"{text!r} has the control character {control_character[0]!r}: remove it")
    return text


def check_word(text: str) -> str:
    """Check a value that becomes a word of a command line, such as a path.

    Raises:
        UserError: The text begins with "-" like an option, or has a control character.
    """
    if text.startswith("-"):
        raise UserError(f"{text!r} begins with -, so programs would take it for an option: write ./{text} or another name")
    return check_line(text)


def check_text(text: str, what: str) -> str:
    """Check a text from the user. It has lone surrogates if it was not in the terminal's encoding.

    Args:
        text: The text.
        what: Name of the text in the error.

    Raises:
        UserError: The text is not valid UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{what} {text!r:.60} is not valid UTF-8: give it in the encoding of the terminal") from None
    return text
