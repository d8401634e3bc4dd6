"""Prints the output of commands that yield paragraphs."""

from collections.abc import Iterable

from megatape.utils.paragraphs import Line
from megatape.utils.url_secrets import mask_secrets


def print_paragraphs(paragraphs: Iterable[str]) -> None:
    """Print each paragraph as soon as it is known, with passwords masked and an empty line after it.

    There is no empty line between the lines of a list (Line).
    """
    in_list = False
    for paragraph in paragraphs:
        is_line = isinstance(paragraph, Line)
        if in_list and not is_line:
            print()
        print(mask_secrets(paragraph), flush=True)
        if not is_line:
            print(flush=True)
        in_list = is_line
