"""Personal data: the same text as by datatrove, in linear time."""

import random

import pytest
from datatrove.pipeline.formatters.pii import PIIFormatter

from megatape.data.cleaning.quality import EMAIL, IP, PersonalData

PARTS = [*"@.-_!#[]:,\\aé中²٣ \n", "..", "b1", "a-b", "ab:", "@a.b", "x@y.z", "255", "1.2.3.4", "8.8.8.8", "[8.8.8.8]"]


def test_personal_data_is_what_datatrove_finds() -> None:
    """The same text as by its own search from every word on."""
    search = PIIFormatter(email_replacement=EMAIL, ip_replacement=IP)
    draw = random.Random(0)
    found = 0
    for _ in range(4000):
        parts = draw.sample(PARTS, draw.randint(3, len(PARTS)))
        text = "".join(draw.choices(parts, k=draw.choice((3, 8, 30, 100))))
        wanted = search.format(text)
        assert PersonalData().apply(text) == wanted
        found += EMAIL in wanted
    assert found > 500


@pytest.mark.timeout(60)  # the search from every word on takes hours
@pytest.mark.parametrize("text", ["a-" * 500_000, "a-" * 300_000 + "@" + "b" * 300_000, "a.b" * 200_000 + "@"])
def test_personal_data_in_a_text_without_spaces(text: str) -> None:
    assert PersonalData().apply(text) == text
