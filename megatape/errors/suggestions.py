"""Advice about unknown names: the most similar one, and a list of known ones."""

import difflib
from collections.abc import Iterable

# Maximum number of names to list beside the most similar one.
MAX_LISTED = 10


def most_similar(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar name, None if no name is similar."""
    close = difflib.get_close_matches(name, [*names], n=1)
    if not close:
        return None
    return close[0]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Suggest the most similar name, such as "did you mean tape? ". Return "" if no name is similar."""
    similar = most_similar(name, names)
    if similar is None:
        return ""
    return f"did you mean {similar}? "


def choose_one(name: str, names: Iterable[str]) -> str:
    """Return advice such as "did you mean tape? choose one of tape, rope".

    With more than MAX_LISTED names, a similar one replaces the list.

    Args:
        name: Unknown name.
        names: Known names, in the order of the list.
    """
    known = [*names]
    question = did_you_mean(name, known)
    if question and len(known) > MAX_LISTED:
        return question.strip()
    return f"{question}choose one of {', '.join(known)}"
