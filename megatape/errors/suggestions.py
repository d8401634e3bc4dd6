"""Advice about a name that is unknown: the most similar one, and the list of those that are known."""

import difflib
from collections.abc import Iterable

# Maximum number of names in a message that suggests the nearest one.
MAX_LISTED = 10


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a question about the most similar name, such as "did you mean tape? ", or "" if no name is similar."""
    close = difflib.get_close_matches(name, [*names], n=1)
    if not close:
        return ""
    return f"did you mean {close[0]}? "


def choose_one(name: str, names: Iterable[str]) -> str:
    """Return advice about an unknown name.

    Args:
        name: Unknown name.
        names: Known names, in the order of the list.

    Returns:
        Advice such as "did you mean tape? choose one of tape, rope". With more than MAX_LISTED names, only the similar one, if
        there is one.
    """
    known = [*names]
    question = did_you_mean(name, known)
    if question and len(known) > MAX_LISTED:
        return question.strip()
    return f"{question}choose one of {', '.join(known)}"
