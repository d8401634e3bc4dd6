"""Quality rules of C4, Gopher and FineWeb for English, computed by datatrove's filters.

They spend most of their time in spaCy, splitting texts into words and sentences.
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

# spaCy takes quadratic time for long text without white space: 11 s for 10,000 brackets.
LONG_RUN = re.compile(r"\S{256}(?=\S)")


@dataclass(frozen=True)
class DatatroveRule(TextRule):
    """A filter of datatrove, applied to one document at a time. The reasons are datatrove's.

    To keep the time linear, the filter gets a text with a space after each 256 characters without white space. A filter that
    edits texts must limit the length of words itself.

    Attributes:
        edits: Whether the filter may change a text.
        filter: Module and class of the filter.
        arguments: Option -> argument of the filter.
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

        document = Document(text, id="")
        if not self.edits:
            document.text = LONG_RUN.sub(r"\g<0> ", text)
        result = self._filter.filter(document)
        is_kept = result
        reason = "dropped"
        if isinstance(result, tuple):
            is_kept, reason = result
        if not is_kept:
            raise DocumentDropped(reason)
        if self.edits:
            return document.text
        return text


@dataclass(frozen=True)
class C4Quality(DatatroveRule):
    """C4's rules (Raffel et al., arXiv 1910.10683, section 2.2) without the list of bad words.

    Before spaCy reads them, removes lines without a terminal punctuation mark, with fewer than three words, with a word of more
    than 1000 characters, or about JavaScript, cookies and terms of use. Drops documents with fewer than `min_sentences`
    remaining sentences, with a curly bracket, or with "lorem ipsum".

    Attributes:
        min_sentences: Minimum number of remaining sentences.
        terminal_punctuation: Whether to remove lines without a terminal punctuation mark. FineWeb keeps them.
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

    Drops documents with few lines ending in punctuation, many short lines, repeated lines, or many lines for few words.
    """

    filter = "fineweb_quality_filter:FineWebQualityFilter"
