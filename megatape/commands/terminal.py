r"""Escapes control characters in a model's output, so that they cannot drive the terminal.

A model can write escape sequences that clear the screen, change the title or, in some terminals, type input. On a terminal,
control characters are printed in Python's notation (\x1b for the escape character). Files and pipes get the text unchanged.
"""

import re
import sys

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # control characters except tab and line feed


def visible(text: str) -> str:
    """Return the text, with control characters in Python's notation if standard output is a terminal."""
    if not sys.stdout.isatty():
        return text
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def visible_json(line: str) -> str:
    """Return a line of JSON, with its unescaped control characters in JSON's notation if standard output is a terminal."""
    if not sys.stdout.isatty():
        return line
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", line)
