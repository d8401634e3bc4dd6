"""Removes lines and paragraphs repeated from earlier documents."""

import re
from dataclasses import dataclass
from typing import ClassVar

from xxhash import xxh3_64_intdigest

from megatape.data.cleaning.rule import DocumentRule, TextRule, UnitRule
from megatape.data.cleaning.word_runs import WORD

DIGIT = re.compile(r"\d")


@dataclass(frozen=True)
class RepeatedLines(UnitRule):
    """Removes lines repeated from this document or an earlier one of the unit, as in CCNet's shards (arXiv 1911.00359, 3.1).

    Lines are compared by their words in lower case, with each digit replaced by 0. Lines without words stay.

    Attributes:
        separator: Separator of the parts that are compared.
    """

    separator: ClassVar[str] = "\n"

    def begin(self) -> DocumentRule:
        return _Unit(self.separator)


@dataclass(frozen=True)
class RepeatedParagraphs(RepeatedLines):
    """Removes repeated paragraphs, which are separated by empty lines."""

    separator = "\n\n"


class _Unit(TextRule):
    """The rule for one unit. It remembers all parts so far, in about 100 bytes each."""

    def __init__(self, separator: str) -> None:
        self.separator = separator
        self.seen = set[int]()

    def apply(self, text: str) -> str:
        return self.separator.join([part for part in text.split(self.separator) if self._is_new(part)])

    def _is_new(self, part: str) -> bool:
        """Whether a part is new, or has no words. Remembers it."""
        words = " ".join(WORD.findall(part.lower()))
        if not words:
            return True
        digest = xxh3_64_intdigest(DIGIT.sub("0", words).encode(errors="replace"))
        is_new = digest not in self.seen
        self.seen.add(digest)
        return is_new
