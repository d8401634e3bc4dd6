r"""The terminal of a command that talks with its user.

Control characters of a model's output are escaped, so that they cannot drive the terminal. A model can write escape sequences
that clear the screen, change the title or, in some terminals, type input. On a terminal, control characters are printed in
Python's notation (\x1b for the escape character). Files and pipes get the text unchanged.
"""

import re
import sys
from collections.abc import Callable

from megatape.errors import UserError

# Control characters except tab and line feed.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


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


def show(text: str) -> None:
    """Print a part of a model's output at once."""
    print(visible(text), end="", flush=True)


def note(text: str) -> None:
    """Print to the standard error, so that the standard output only has answers of the model."""
    print(text, file=sys.stderr, flush=True)


def take_lines(take: Callable[[str], None]) -> None:
    """Pass each line of standard input that is not blank to a function, and print the error if it refuses a line.

    Args:
        take: Called with a line. It may raise UserError or ChildProcessError.
    """
    prompt = ""
    if sys.stdin.isatty() and sys.stdout.isatty():
        prompt = "> "
    while True:
        try:
            # Several pasted lines are one message, which may end with a line feed.
            line = input(prompt).removesuffix("\n")
            if line.strip():
                take(line)
        except EOFError:
            return
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            note("\n(Ctrl-D ends)")
        except (UserError, ChildProcessError) as error:
            note(f"error: {error}")
