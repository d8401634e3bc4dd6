r"""Input and output of commands in which a model talks with the user.

On a terminal, control characters in a model's output are printed in Python's notation (\x1b for the escape character).
Otherwise a model could write escape sequences that clear the screen, change the title or, in some terminals, type input. Files
and pipes get the text unchanged.
"""

import re
import sys
from collections.abc import Callable

from megatape.errors import UserError

# Control characters except tab and line feed.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    """Return the text, with control characters escaped in Python's notation if standard output is a terminal."""
    if not sys.stdout.isatty():
        return text
    return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def visible_json(line: str) -> str:
    """Return a line of JSON, with control characters escaped in JSON's notation if standard output is a terminal."""
    if not sys.stdout.isatty():
        return line
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", line)


def show(text: str) -> None:
    """Print a part of a model's output immediately."""
    print(visible(text), end="", flush=True)


def note(text: str) -> None:
    """Print to standard error, so that standard output only contains the model's text."""
    print(text, file=sys.stderr, flush=True)


def take_lines(take: Callable[[str], None]) -> None:
    """Call a function with each line of standard input that is not blank.

    Args:
        take: Function of a line. If it raises UserError or ChildProcessError, the error is printed.
    """
    prompt = ""
    if sys.stdin.isatty() and sys.stdout.isatty():
        prompt = "> "
    while True:
        try:
            # A bracketed paste is a single line here, and may end with a line feed.
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
