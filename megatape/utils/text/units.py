"""Formats numbers and times for people."""

import math
import time
from collections.abc import Sequence


def format_bytes(number: float) -> str:
    """Format bytes in a suitable unit."""
    # Numbers that would be rounded up to 1,024 get the next unit.
    if number < 1023.5:
        return f"{number:,.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        number /= 1024
        if number < 1023.995:
            return f"{number:,.2f} {unit}"
    return f"{number / 1024:,.2f} TiB"


def format_count(number: float, units: Sequence[str] = ("", "K", "M", "B", "T")) -> str:
    """Format a number with three digits, such as 1.37B. With the last unit, numbers from 1,000 on are rounded to integers.

    Args:
        number: Parameters, tokens and the like.
        units: Units for one, a thousand, a million and so on.
    """
    power = 0
    while number >= 999.5 and power < len(units) - 1:
        number /= 1000
        power += 1
    # With three digits, it would get an exponent.
    if number >= 999.5:
        return f"{number:,.0f}{units[power]}"
    return f"{number:,.3g}{units[power]}"


def plural(number: int, noun: str, nouns: str = "") -> str:
    """Return a number with its noun, such as "1 node" or "2,048 nodes".

    Args:
        number: The number.
        noun: Singular.
        nouns: Plural, by default the singular with an s.
    """
    if number == 1:
        return f"1 {noun}"
    if not nouns:
        nouns = f"{noun}s"
    return f"{number:,} {nouns}"


def format_range(low: float, high: float) -> str:
    """Format a range with three digits, such as "5.98 to 14.5". From 1,000 on, numbers are rounded to integers."""
    texts = []
    for number in (low, high):
        # With three digits, 999.5 would be 1e+03.
        if number >= 999.5:
            texts.append(f"{number:,.0f}")
        else:
            texts.append(f"{number:.3g}")
    return " to ".join(texts)


def format_time(seconds: float) -> str:
    """Format a time in seconds since the epoch, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def format_duration(seconds: float) -> str:
    """Format a duration in one or two units, such as 41 s, 4 min 12 s or 3 d 4 h."""
    rest = round(seconds)
    parts: list[str] = []
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        number, rest = divmod(rest, size)
        if number or (unit == "s" and not parts):
            parts.append(f"{number} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])


def format_number(value: float, digits: int = 4) -> str:
    """Format a number with some significant digits. An integer part with more digits is not shortened. NaN is "".

    Args:
        value: The number.
        digits: Significant digits. From 10,000 on, all numbers are rounded to integers.
    """
    if math.isnan(value):
        return ""
    # With `g`, Python would write an exponent if the rounded integer has more than `digits` digits.
    size = abs(value)
    if size >= 9_999.5:
        return f"{value:,.0f}"
    if size >= 10**digits - 0.5:
        return f"{value:.0f}"
    return f"{value:.{digits}g}"


def format_milliseconds(seconds: float) -> str:
    """Format seconds as milliseconds, with about three digits."""
    milliseconds = seconds * 1e3
    if seconds < 0.1:
        return f"{milliseconds:.3g}"
    return f"{milliseconds:,.0f}"
