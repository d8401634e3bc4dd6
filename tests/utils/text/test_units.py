"""Readable numbers."""

import math

import pytest

from megatape.utils.text.units import format_bytes, format_count, format_duration, format_number, format_range, plural


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.23456, "1.235"),
        (1e-5, "1e-05"),
        (-9999.4, "-9999"),
        (9999.7, "10,000"),
        (12345.6, "12,346"),
        (math.nan, ""),
        (math.inf, "inf"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.012345, 2, "0.012"),
        (99.4, 2, "99"),
        (99.7, 2, "100"),
        (-150.0, 2, "-150"),
        (1234.0, 3, "1234"),
        (9999.7, 3, "10,000"),
        (1234.56, 6, "1234.56"),
        (9999.7, 6, "10,000"),
    ],
)
def test_digits(value: float, digits: int, text: str) -> None:
    """Integers have no exponent: this notices a limit that ignores the number of digits, or rounding."""
    assert format_number(value, digits) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [(5.981, 14.52, "5.98 to 14.5"), (999.4, 999.7, "999 to 1,000"), (1200.4, 54321.0, "1,200 to 54,321")],
)
def test_ranges(low: float, high: float, text: str) -> None:
    assert format_range(low, high) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1K"),
        (999_600, "1M"),
        (1_367_492_992, "1.37B"),
        (70_574_724_096, "70.6B"),
        (999.7e12, "1,000T"),
        (1.5e15, "1,500T"),
        (3e16, "30,000T"),
    ],
)
def test_counts(number: float, text: str) -> None:
    assert format_count(number) == text


def test_units_of_measurement() -> None:
    assert format_count(2.07e17, ["", " k", " M", " G", " T", " P"]) == "207 P"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1023, "1,023 B"),
        (1023.7, "1.00 KiB"),
        (1023.99 * 2**10, "1,023.99 KiB"),
        (2**20 - 1, "1.00 MiB"),
        (1.5 * 2**30, "1.50 GiB"),
        (2**40 - 1, "1.00 TiB"),
        (1.03 * 2**40, "1.03 TiB"),
        (2000 * 2**40, "2,000.00 TiB"),
    ],
)
def test_bytes(number: float, text: str) -> None:
    assert format_bytes(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (41.4, "41 s"), (59.6, "1 min"), (252, "4 min 12 s"), (7200, "2 h"), (7205, "2 h"), (273_700, "3 d 4 h")],
)
def test_durations(seconds: float, text: str) -> None:
    """A duration has at most two units, and none after a zero."""
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "nouns", "text"),
    [
        (0, ("node",), "0 nodes"),
        (1, ("node",), "1 node"),
        (2048, ("node",), "2,048 nodes"),
        (1, ("process is", "processes are"), "1 process is"),
        (3, ("process is", "processes are"), "3 processes are"),
    ],
)
def test_numbers_of_things(number: int, nouns: tuple[str, ...], text: str) -> None:
    assert plural(number, *nouns) == text
