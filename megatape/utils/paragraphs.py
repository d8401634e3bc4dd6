"""Paragraphs of a long output, which functions yield while the rest is computed."""


class Line(str):
    """Paragraph of one line, such as the result of a model. Adjacent ones are printed without an empty line between them."""

    __slots__ = ()
