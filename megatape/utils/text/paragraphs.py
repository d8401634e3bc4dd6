"""Paragraphs of long output, which functions show as soon as they are known."""

from collections.abc import Callable

# Function that shows a paragraph to the user.
Show = Callable[[str], None]


class Line(str):
    """One-line paragraph, such as a model's result. Adjacent ones are printed without an empty line between them."""

    __slots__ = ()
