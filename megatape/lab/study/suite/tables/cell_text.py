"""Text of cells: scores, differences and needed seeds."""

from statistics import fmean, stdev

from megatape.lab.study.suite.analysis.differences import Difference
from megatape.lab.study.suite.analysis.hypothesis_tests import MAX_SEEDS

BETTER = "▲"
WORSE = "▼"


def mean_and_deviation(scores: list[float]) -> str:
    """Format mean and standard deviation in %. A single score has no deviation."""
    mean = f"{100 * fmean(scores):.1f}"
    if len(scores) == 1:
        return mean
    return f"{mean} ± {100 * stdev(scores):.1f}"


def mark(difference: Difference | None) -> str:
    """Return the mark of a significant difference, "" for others."""
    if difference is None or not difference.significant:
        return ""
    if difference.mean > 0:
        return BETTER
    return WORSE


def difference_text(difference: Difference | None) -> str:
    """Format a difference with its interval and its p-value."""
    if difference is None:
        return ""
    mean = points(difference.mean)
    if difference.p is None:
        return f"{mean}, one seed"
    symbol = mark(difference)
    if difference.interval is None:
        return f"{mean}, exact p {difference.p:.2g} {symbol}".strip()
    low, high = difference.interval
    return f"{mean} ({points(low)} to {points(high)}), p {difference.p:.2g} {symbol}".strip()


def points(difference: float, digits: int = 1) -> str:
    """Format a difference in percentage points, with a sign. Values that round to zero are positive."""
    return f"{round(100 * difference, digits) + 0:+.{digits}f}"


def needed_text(difference: Difference | None) -> str:
    """Format the number of seeds needed to show a difference."""
    if difference is None or difference.p is None:
        return ""
    if difference.needed is None:
        return f"more than {MAX_SEEDS:,}"
    if difference.interval is None:
        return f"at least {difference.needed:,}"
    return f"{difference.needed:,}"
