r"""Text of a model on the standard output, whose control characters must not drive a terminal.

A model can write escape sequences that clear the screen, change the title or type into some terminals. A terminal shows such
characters in Python's notation, \x1b for the escape character. Files and pipes get the text as it is.
"""

import re
import sys

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line feed


def visible(text: str) -> str:
    """Return a text with its control characters in Python's notation if the standard output is a terminal."""
    if not sys.stdout.isatty():
        return text
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def visible_json(line: str) -> str:
    """Return a line of JSON, in which some control characters may stand unescaped, with JSON's escapes for a terminal."""
    if not sys.stdout.isatty():
        return line
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", line)
