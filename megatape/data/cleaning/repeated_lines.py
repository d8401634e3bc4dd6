"""Lines and paragraphs that an earlier document has, too."""

import re
from dataclasses import dataclass
from typing import ClassVar

from xxhash import xxh3_64_intdigest

from megatape.data.cleaning.rule import DocumentRule, TextRule, UnitRule
from megatape.data.cleaning.word_runs import WORD

DIGIT = re.compile(r"\d")


@dataclass(frozen=True)
class RepeatedLines(UnitRule):
    """A line goes if this document or an earlier one of the unit has it, too, as in CCNet's shards (arXiv 1911.00359, 3.1).

    Lines are compared by their words in lower case, in which each digit counts as 0. Those without words stay.

    Attributes:
        separator: What separates the parts of a text.
    """

    separator: ClassVar[str] = "\n"

    def begin(self) -> DocumentRule:
        return _Unit(self.separator)


@dataclass(frozen=True)
class RepeatedParagraphs(RepeatedLines):
    """The same with paragraphs, which an empty line separates."""

    separator = "\n\n"


class _Unit(TextRule):
    """The rule for one unit, whose parts it has seen so far: about 100 bytes of memory for each."""

    def __init__(self, separator: str) -> None:
        self.separator = separator
        self.seen = set[int]()

    def apply(self, text: str) -> str:
        return self.separator.join([part for part in text.split(self.separator) if self._is_new(part)])

    def _is_new(self, part: str) -> bool:
        """Whether a part is new, or has no words. Remembers it."""
        words = " ".join(WORD.findall(part.lower()))
        before = len(self.seen)
        if words:
            self.seen.add(xxh3_64_intdigest(DIGIT.sub("0", words).encode(errors="replace")))
        return not words or len(self.seen) > before
