"""Time limits of Slurm jobs."""

import re

# Slurm's formats of a time limit: 90, 90:30, 1:30:00, 1-12, 1-12:00:00.
TIME_LIMIT = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


def parse_time_limit(time: str) -> float | None:
    """Return a Slurm time limit in minutes, where 0 means no limit, or None if its format is unknown."""
    match = TIME_LIMIT.fullmatch(time)
    if match is None:
        return None
    days, *parts = match.groups()
    first, second, third = (int(part or 0) for part in parts)
    has_hours = days is not None or parts[2] is not None
    if not has_hours:
        return first + second / 60
    return int(days or 0) * 1440 + first * 60 + second + third / 60
