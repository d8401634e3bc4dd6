"""Documents of sources, and decisions about them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from megatape.data.counts import EMPTY_DOCUMENTS


class Document(NamedTuple):
    """Document of a source.

    Attributes:
        text: Text of the document.
        place: Place in the source such as `file:line`, the same on every machine with the same inputs.
        url: Address at which the source found it; empty if unknown.
        input: Element of `Source.inputs` that contains it, filled in by `read_unit`.
        scores: Scores by cleaning rules, by their names, filled in by `read_unit`.
        fields: Values of `Source.fields`, only for cleaning rules.
        content: Text in UTF-8, filled in by `read_unit`.
        digest: Hash of the content, filled in by `read_unit`.
    """

    text: str
    place: str
    url: str = ""
    input: str = ""
    scores: Mapping[str, float] = {}
    fields: Mapping[str, Any] = {}
    content: bytes = b""
    digest: bytes = b""


class Decision(NamedTuple):
    """Decision about a document: kept if `text` is set, dropped otherwise.

    Attributes:
        text: Text to write, or None to drop the document.
        rule: Name of the rule that drops it.
        reason: Reason of the rule, one of few; empty for a rule with a single one.
        edits: Name of each rule that changed the text, with the text it returned.
        scores: Score by each rule that gives one, by the rule's name.
        content: Text in UTF-8.
        digest: Hash of the content.
    """

    text: str | None
    rule: str = ""
    reason: str = ""
    edits: tuple[tuple[str, str], ...] = ()
    scores: Mapping[str, float] = {}
    content: bytes = b""
    digest: bytes = b""

    @property
    def label(self) -> str:
        """Reason under which a dropped document is counted."""
        if not self.reason:
            return self.rule
        return f"{self.rule}: {self.reason}"


# Decides about a document. It is called with all documents of a unit that are not empty, in order.
Decide = Callable[[Document], Decision]
# Is notified about every document of a unit and the decision about it, in order.
Record = Callable[[Document, Decision], None]
EMPTY = Decision(None, EMPTY_DOCUMENTS)


def keep(document: Document) -> Decision:
    """Decide to keep a document unchanged."""
    return Decision(document.text)
