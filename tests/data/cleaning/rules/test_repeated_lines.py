"""Lines and paragraphs repeated from earlier documents in a unit."""

import pytest

from megatape.data.cleaning.decisions import Cleaning, OnePass
from megatape.data.cleaning.first_pass import FirstPass
from megatape.data.cleaning.rule import parse_rules
from megatape.data.sources.document import Document

TEXTS = ["Menu 12\nOne story.\n\nThe end.", "menu, 34!\n---\nOther story.\n---\n\nThe end.", "MENU 56\n\nthe end"]
EDITED_TEXTS: dict[str, list[str | None]] = {
    "repeated_lines": [TEXTS[0], "---\nOther story.\n---\n", None],
    "repeated_paragraphs": [TEXTS[0], "menu, 34!\n---\nOther story.\n---", "MENU 56"],
}


@pytest.mark.parametrize("decider_type", [OnePass, FirstPass])
@pytest.mark.parametrize("rule", EDITED_TEXTS)
def test_repetitions_of_earlier_documents_are_removed(decider_type: type[OnePass | FirstPass], rule: str) -> None:
    """Case, punctuation and digits do not matter. Lines without words stay. Each unit starts without earlier documents."""
    cleaning = Cleaning(parse_rules([rule]), drop_duplicates=False)
    expected = EDITED_TEXTS[rule]

    for _ in range(2):
        decider = decider_type(cleaning)
        decisions = [decider.decide(Document(text, "")) for text in TEXTS]
        assert [decision.text for decision in decisions] == expected
        assert decisions[1].edits == ((rule, expected[1]),)
        dropped = [decision for decision in decisions if decision.text is None]
        assert [decision.reason for decision in dropped] == ["nothing left"] * len(dropped)


def test_repetitions_in_the_same_document_are_removed() -> None:
    decider = OnePass(Cleaning(parse_rules(["repeated_lines"])))

    decision = decider.decide(Document("a b\nc\na b\n\nd", ""))

    assert decision.text == "a b\nc\n\nd"
