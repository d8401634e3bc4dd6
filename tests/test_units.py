"""Readable numbers."""

import math

import pytest

from megatape.units import format_bytes, format_number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.23456, "1.235"),
        (1e-5, "1e-05"),
        (-9999.4, "-9999"),
        (12345.6, "12,346"),
        (math.nan, ""),
        (math.inf, "inf"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert format_number(value) == text


def test_digits_and_bytes() -> None:
    assert format_number(0.012345, 2) == "0.012"
    assert [format_bytes(number) for number in (1023, 1024, 5 * 2**30)] == ["1,023 B", "1.00 KiB", "5.00 GiB"]
