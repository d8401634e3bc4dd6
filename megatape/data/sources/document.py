"""Documents of sources, and decisions about them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from megatape.data.counts import EMPTY_DOCUMENTS


class Document(NamedTuple):
    """Document of a source. `read_unit` fills in input, scores, content and digest.

    Attributes:
        text: Document text.
        location: Location in the source such as `file:line`, the same on every machine with the same inputs.
        url: Document address; empty if unknown.
        input: Element of `Source.inputs` containing the document.
        scores: Scores by cleaning rule.
        fields: Values of `Source.fields`, for cleaning rules only.
        content: Text in UTF-8.
        digest: Hash of `content`.
    """

    text: str
    location: str
    url: str = ""
    input: str = ""
    scores: Mapping[str, float] = {}
    fields: Mapping[str, Any] = {}
    content: bytes = b""
    digest: bytes = b""


class Edit(NamedTuple):
    """A cleaning rule that changed a document, and the text after the change."""

    rule: str
    text: str


class Decision(NamedTuple):
    """Decision about a document: kept if `text` is set, dropped otherwise.

    Attributes:
        text: Text to write, or None to drop the document.
        rule: Rule dropping the document.
        reason: The rule's reason, one of few; empty for a rule with a single one.
        edits: Changes of the text, in order.
        scores: Scores by rule.
        content: Text in UTF-8.
        digest: Hash of `content`.
    """

    text: str | None
    rule: str = ""
    reason: str = ""
    edits: tuple[Edit, ...] = ()
    scores: Mapping[str, float] = {}
    content: bytes = b""
    digest: bytes = b""

    @property
    def label(self) -> str:
        """Reason under which a dropped document is counted."""
        if not self.reason:
            return self.rule
        return f"{self.rule}: {self.reason}"


# Decides about a document. Called for all documents of a unit that are not empty, in order.
Decide = Callable[[Document], Decision]
# Called for every document of a unit, with the decision about it, in order.
OnDecision = Callable[[Document, Decision], None]
EMPTY = Decision(None, EMPTY_DOCUMENTS)


def keep(document: Document) -> Decision:
    """Decide to keep a document unchanged."""
    return Decision(document.text, scores=document.scores)
