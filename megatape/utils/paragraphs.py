"""Paragraphs of long output, which functions yield as soon as they are computed."""


class Line(str):
    """One-line paragraph, such as a model's result. Adjacent ones are printed without an empty line between them."""

    __slots__ = ()
