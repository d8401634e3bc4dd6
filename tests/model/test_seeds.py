"""Seeds for initial weights and dropout."""

from typing import Literal

import pytest

from megatape.model.seeds import seed_of


@pytest.mark.parametrize(
    ("text", "bits", "byte_order", "expected"),
    [
        ("0/embedding.weight/0", 63, "little", 2722993898997317488),
        ("0.attention.query", 56, "big", 27581018655844014),
    ],
)
def test_seeds_do_not_change(text: str, bits: int, byte_order: Literal["little", "big"], expected: int) -> None:
    """Other seeds would give new runs other weights, and resumed runs another dropout."""
    assert seed_of(text, bits, byte_order) == expected
