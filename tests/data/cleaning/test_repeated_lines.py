"""Lines and paragraphs of earlier documents of a unit."""

import pytest

from megatape.data.cleaning.decisions import Cleaning, OnePass
from megatape.data.cleaning.first_pass import FirstPass
from megatape.data.cleaning.rule import parse_rules
from megatape.data.sources.document import Document

TEXTS = ["Menu 12\nOne story.\n\nThe end.", "menu, 34!\n---\nOther story.\n---\n\nThe end.", "MENU 56\n\nthe end"]


@pytest.mark.parametrize("kind", [OnePass, FirstPass])
@pytest.mark.parametrize(
    ("rule", "left"),
    [
        ("repeated_lines", [TEXTS[0], "---\nOther story.\n---\n", None]),
        ("repeated_paragraphs", [TEXTS[0], "menu, 34!\n---\nOther story.\n---", "MENU 56"]),
    ],
)
def test_what_an_earlier_document_has_goes(kind: type[OnePass | FirstPass], rule: str, left: list[str | None]) -> None:
    """Without regard to case, punctuation and digits; lines without words stay. Each unit begins anew."""
    cleaning = Cleaning(parse_rules([rule]), drop_duplicates=False)
    for _ in range(2):
        decider = kind(cleaning)
        decisions = [decider.decide(Document(text, "")) for text in TEXTS]
        assert [decision.text for decision in decisions] == left
        assert decisions[1].edits == ((rule, left[1]),)
    assert [decision.reason for decision in decisions if decision.text is None] == ["nothing left"] * left.count(None)


def test_a_line_repeats_in_its_own_document() -> None:
    assert OnePass(Cleaning(parse_rules(["repeated_lines"]))).decide(Document("a b\nc\na b\n\nd", "")).text == "a b\nc\n\nd"
