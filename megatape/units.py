"""Readable numbers and times."""

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
