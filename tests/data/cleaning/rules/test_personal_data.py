"""Personal data: replaced as by datatrove, in linear time."""

import random

import pytest
from datatrove.pipeline.formatters.pii import PIIFormatter

from megatape.data.cleaning.rules.personal_data import EMAIL, IP, PersonalData

PARTS = [*"@.-_!#[]:,\\aé中²٣ \n", "..", "b1", "a-b", "ab:", "@a.b", "x@y.z", "255", "1.2.3.4", "8.8.8.8", "[8.8.8.8]"]


def random_text(draw: random.Random) -> str:
    """Return a text of random parts of addresses."""
    parts = draw.sample(PARTS, draw.randint(3, len(PARTS)))
    num_parts = draw.choice((3, 8, 30, 100))
    return "".join(draw.choices(parts, k=num_parts))


def test_personal_data_is_what_datatrove_finds() -> None:
    datatrove = PIIFormatter(email_replacement=EMAIL, ip_replacement=IP)
    draw = random.Random(0)
    num_with_email = 0
    for _ in range(4000):
        text = random_text(draw)
        expected = datatrove.format(text)
        assert PersonalData().apply(text) == expected
        if EMAIL in expected:
            num_with_email += 1
    assert num_with_email > 500


# Searching from every word would take hours.
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a-" * 500_000, id="no at sign"),
        pytest.param("a-" * 300_000 + "@" + "b" * 300_000, id="no dot after the at sign"),
        pytest.param("a.b" * 200_000 + "@", id="nothing after the at sign"),
    ],
)
def test_personal_data_in_a_text_without_spaces(text: str) -> None:
    assert PersonalData().apply(text) == text
