"""Text of cells: scores, differences and needed seeds."""

from statistics import fmean, stdev

from megatape.lab.study.suite.analysis.differences import Difference
from megatape.lab.study.suite.analysis.hypothesis_tests import MAX_SEEDS

BETTER = "▲"
WORSE = "▼"
# Marks of differences that only pass at the false discovery rate.
FOUND_BETTER = "△"
FOUND_WORSE = "▽"


def mean_and_deviation(scores: list[float]) -> str:
    """Format mean and standard deviation in %. A single score has no deviation."""
    mean = f"{100 * fmean(scores):.1f}"
    if len(scores) == 1:
        return mean
    return f"{mean} ± {100 * stdev(scores):.1f}"


def mark(difference: Difference | None) -> str:
    """Return the mark of a difference that is significant, or found at the false discovery rate, "" for others."""
    if difference is None:
        return ""
    is_better = difference.mean > 0
    if difference.significant:
        return BETTER if is_better else WORSE
    if difference.is_discovery:
        return FOUND_BETTER if is_better else FOUND_WORSE
    return ""


def difference_text(difference: Difference | None) -> str:
    """Format a difference with its interval, if it has one, its p-value, and that of the false discovery rate as q."""
    if difference is None:
        return ""
    mean = points(difference.mean)
    if difference.p is None or difference.false_discovery_p is None:
        return f"{mean}, one seed"
    if difference.interval is not None:
        low, high = difference.interval
        mean = f"{mean} ({points(low)} to {points(high)})"
    return f"{mean}, p {difference.p:.2g}, q {difference.false_discovery_p:.2g} {mark(difference)}".strip()


def points(difference: float, digits: int = 1) -> str:
    """Format a difference in percentage points, with a sign. Values that round to zero are positive."""
    return f"{round(100 * difference, digits) + 0:+.{digits}f}"


def needed_text(difference: Difference | None) -> str:
    """Format the number of seeds needed to show a difference."""
    if difference is None or difference.p is None:
        return ""
    if difference.needed is None:
        return f"more than {MAX_SEEDS:,}"
    return f"{difference.needed:,}"
