"""Apply cleaning rules to a text."""

from megatape.data.cleaning.decisions import Cleaning
from megatape.data.cleaning.rule import parse_rules
from megatape.data.sources.document import Document

PROSE = (
    "The river rises in the hills behind the town and reaches the sea after forty miles. People have fished here for centuries"
    ". In spring the water is high and the boats stay in the harbour. A ferry crosses it twice a day, and the bridge that "
    "was built in the last century carries the road to the north. Most visitors come in summer for the beaches."
)


def apply_rule(rule: str, text: str) -> str:
    """Return the text as edited by a rule, or "dropped by RULE: REASON"."""
    cleaning = Cleaning(parse_rules([rule]))
    decision = cleaning.decide(Document(text, "a.jsonl:1"))
    if decision.text is None:
        return f"dropped by {decision.label}"
    return decision.text
