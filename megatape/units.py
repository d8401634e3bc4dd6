"""Readable numbers and times."""

import math
import time


def format_bytes(number: float) -> str:
    """Bytes in the unit that suits them."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.2f} {unit}"
        number /= 1024
    return f"{number:,.2f} GiB"


def format_time(seconds: float) -> str:
    """A time in seconds since the epoch, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def format_number(value: float, digits: int = 4) -> str:
    """A number with this many digits, whole from 10,000 on; nothing for NaN."""
    return "" if math.isnan(value) else f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.{digits}g}"


def format_milliseconds(seconds: float) -> str:
    """Seconds in milliseconds, with about three digits."""
    return f"{seconds * 1e3:.3g}" if seconds < 0.1 else f"{seconds * 1e3:,.0f}"
