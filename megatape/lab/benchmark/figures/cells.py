"""Table cells for ratios, times and sizes."""

from megatape.lab.benchmark.figures.timing import Spread
from megatape.utils.text.units import format_bytes, format_milliseconds


def ratio_cell(ratio: float | Spread, digits: int = 2) -> str:
    """Format a ratio to a baseline, with its quartiles if it is a spread over rounds."""
    if isinstance(ratio, Spread):
        return f"{ratio.median:.{digits}f} ({ratio.low:.{digits}f} to {ratio.high:.{digits}f})"
    return f"{ratio:.{digits}f}"


def milliseconds_cell(seconds: Spread) -> str:
    """Format the median and the quartiles in milliseconds."""
    median = format_milliseconds(seconds.median)
    return f"{median} ({format_milliseconds(seconds.low)} to {format_milliseconds(seconds.high)})"


def bytes_cell(num_bytes: float | None) -> str:
    """Format a size. A missing one is empty."""
    if num_bytes is None:
        return ""
    return format_bytes(num_bytes)
