"""Cells of the tables of benchmarks."""

from megatape.lab.benchmark.timing import Spread
from megatape.utils.units import format_milliseconds


def ratio_cell(ratio: float | Spread, digits: int = 2) -> str:
    """Format a ratio to a baseline, with its quartiles if it is a spread.

    Args:
        ratio: Ratio, or its spread over rounds.
        digits: Number of digits after the point.
    """
    if isinstance(ratio, Spread):
        return f"{ratio.median:.{digits}f} ({ratio.low:.{digits}f} to {ratio.high:.{digits}f})"
    return f"{ratio:.{digits}f}"


def milliseconds_cell(seconds: Spread) -> str:
    """Format the median and the quartiles of times in milliseconds."""
    median = format_milliseconds(seconds.median)
    return f"{median} ({format_milliseconds(seconds.low)} to {format_milliseconds(seconds.high)})"
