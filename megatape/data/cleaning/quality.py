"""The rules of datatrove: the quality rules of C4, Gopher and FineWeb, for English, and personal data.

spaCy divides texts into words and sentences for the quality rules, which takes most of their time.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from megatape.data.cleaning.rule import DocumentDropped, TextRule

if TYPE_CHECKING:
    from datatrove.pipeline.filters.base_filter import BaseFilter
    from datatrove.pipeline.formatters.pii import PIIFormatter

# spaCy takes the square of the length of a run without white space: 11 s for 10,000 brackets.
LONG_RUN = re.compile(r"\S{256}(?=\S)")
# datatrove's first ones: it takes turns, which would depend on the order
EMAIL = "email@example.com"
IP = "22.214.171.124"
# The part of an address before its @, of datatrove's pattern: words that single dots separate.
WORD = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
REVERSED = re.compile(rf"{WORD}++(?:\.{WORD}++)*+")
BEGIN = re.compile(rf"\b{WORD}")


@dataclass(frozen=True)
class DatatroveRule(TextRule):
    """A filter of datatrove, applied to one document at a time. The reasons are datatrove's.

    It sees a space after each 256 characters without white space, so that its time is linear. A filter that edits must bound
    the length of words itself.

    Attributes:
        edits: Whether the filter may change a text.
        filter: Its module and class.
        arguments: The filter's names of the options.
    """

    packages: ClassVar[tuple[str, ...]] = ("datatrove", "spacy")
    edits: ClassVar[bool] = False
    filter: ClassVar[str]
    arguments: ClassVar[dict[str, str]] = {}

    @cached_property
    def _filter(self) -> "BaseFilter":
        kind = resolve_name(f"datatrove.pipeline.filters.{self.filter}")
        return kind(**{argument: getattr(self, option) for option, argument in self.arguments.items()})

    def apply(self, text: str) -> str:
        from datatrove.data import Document

        document = Document(text if self.edits else LONG_RUN.sub(r"\g<0> ", text), id="")
        verdict = self._filter.filter(document)
        kept, reason = verdict if isinstance(verdict, tuple) else (verdict, "dropped")
        if not kept:
            raise DocumentDropped(reason)
        return document.text if self.edits else text


@dataclass(frozen=True)
class C4Quality(DatatroveRule):
    """C4's rules (Raffel et al., arXiv 1910.10683, section 2.2) without the list of bad words.

    Lines without a terminal punctuation mark, with fewer than three words or about JavaScript, cookies and terms of use go; so
    do documents that keep fewer sentences than `min_sentences`, or hold a curly bracket or "lorem ipsum". Lines with a word of
    more than 1000 characters go before spaCy reads them.

    terminal_punctuation: false keeps lines without a mark, as FineWeb does.
    """

    edits = True
    filter = "c4_filters:C4QualityFilter"
    arguments: ClassVar = {"min_sentences": "min_num_sentences", "terminal_punctuation": "filter_no_terminal_punct"}
    min_sentences: Annotated[int, Field(ge=0)] = 5
    terminal_punctuation: bool = True


@dataclass(frozen=True)
class GopherQuality(DatatroveRule):
    """Gopher's rules about words and lines (Rae et al., arXiv 2112.11446, table A1)."""

    filter = "gopher_quality_filter:GopherQualityFilter"
    arguments: ClassVar = {"min_words": "min_doc_words", "max_words": "max_doc_words"}
    min_words: Annotated[int, Field(ge=1)] = 50
    max_words: Annotated[int, Field(ge=1)] = 100_000


@dataclass(frozen=True)
class GopherRepetition(DatatroveRule):
    """Gopher's rules about repeated lines, paragraphs and n-grams (Rae et al., arXiv 2112.11446, table A1)."""

    filter = "gopher_repetition_filter:GopherRepetitionFilter"


@dataclass(frozen=True)
class FineWebQuality(DatatroveRule):
    """The rules that FineWeb added (Penedo et al., arXiv 2406.17557, section 3.6).

    Documents go that have few lines that end in punctuation, many short lines, repeated lines, or many lines for few words.
    """

    filter = "fineweb_quality_filter:FineWebQualityFilter"


@dataclass(frozen=True)
class PersonalData(TextRule):
    """E-mail addresses and public IPv4 addresses become EMAIL and IP.

    The patterns are datatrove's, as in FineWeb (Penedo et al., arXiv 2406.17557). datatrove searches for an e-mail address from
    each word on, in quadratic time where words follow each other without space. Here the search begins at each @, which an
    address has once, and its time is linear. The result is the same.
    """

    packages: ClassVar[tuple[str, ...]] = ("datatrove",)

    @cached_property
    def _formatter(self) -> "PIIFormatter":
        from datatrove.pipeline.formatters.pii import PIIFormatter

        return PIIFormatter(ip_replacement=IP)

    def apply(self, text: str) -> str:
        address = self._formatter.emails_replacer.regex
        parts: list[str] = []
        end = before = 0  # of the last address, and of the last @
        for sign in re.finditer("@", text):
            at = sign.start()
            longest = REVERSED.match(text[max(end, before) : at][::-1])
            begin = BEGIN.search(text, at - longest.end(), at) if longest else None
            found = address.match(text, begin.start()) if begin else None
            if found:
                parts += text[end : found.start()], EMAIL
                end = found.end()
            before = sign.end()
        return self._formatter.ip_replacer.replace("".join(parts) + text[end:])
