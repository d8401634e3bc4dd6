"""Parts of the time of a run, written shortly."""

from megatape.reliability.goodput.parts import PARTS, TimeParts


def time_parts(**seconds: float) -> TimeParts:
    """Return parts with these seconds by name. The others are zero."""
    parts = TimeParts()
    for name, value in seconds.items():
        parts[PARTS[name]] = value
    return parts
