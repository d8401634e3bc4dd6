"""Prints the paragraphs of commands."""

from collections.abc import Iterable

from megatape.utils.text.paragraphs import Line
from megatape.utils.text.url_secrets import mask_secrets


class ParagraphPrinter:
    """Prints paragraphs, with passwords masked and an empty line after each.

    There is no empty line between the lines of a list (Line).
    """

    def __init__(self) -> None:
        self._in_list = False

    def print(self, paragraph: str) -> None:
        """Print a paragraph at once."""
        is_line = isinstance(paragraph, Line)
        if self._in_list and not is_line:
            print()
        print(mask_secrets(paragraph), flush=True)
        if not is_line:
            print(flush=True)
        self._in_list = is_line


def print_paragraphs(paragraphs: Iterable[str]) -> None:
    """Print paragraphs that are known, such as tables. ParagraphPrinter is for those of work in progress."""
    printer = ParagraphPrinter()
    for paragraph in paragraphs:
        printer.print(paragraph)
