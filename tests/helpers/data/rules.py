"""Rules applied to a text."""

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.cleaning.rule import parse_rules
from megatape.data.sources.document import Document

PROSE = (
    "The river rises in the hills behind the town and reaches the sea after forty miles. People have fished here for centuries"
    ". In spring the water is high and the boats stay in the harbour. A ferry crosses it twice a day, and the bridge that "
    "was built in the last century carries the road to the north. Most visitors come in summer for the beaches."
)


def verdict(rule: str, text: str) -> str:
    """The text that a rule leaves, or its reason with the rule's name."""
    decision = Cleaning(parse_rules([rule])).decide(Document(text, "a.jsonl:1"))
    return f"dropped by {decision.label}" if decision.text is None else decision.text
