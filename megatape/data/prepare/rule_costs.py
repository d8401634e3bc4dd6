"""Costs of cleaning rules, measured on some documents and projected to the whole input."""

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from megatape.utils.text.units import format_bytes

SECONDS_PER_HOUR = 3600
# Names in the report.
REST = "reading and comparing"
TOTAL = "all of it"


@dataclass
class _RuleTime:
    """Processor seconds of a rule's calls, of which the first one loads packages and models.

    Attributes:
        num_later: Calls after the first one.
        seconds: Seconds of the first call.
        later_seconds: Seconds of the other calls.
    """

    num_later: int = -1
    seconds: float = 0.0
    later_seconds: float = 0.0


@dataclass(frozen=True)
class Projection:
    """From the documents of a dry run to the whole input.

    Attributes:
        num_documents: Documents read.
        read_bytes: Bytes read of the input; 0 if unknown.
        total_bytes: Bytes of the input; 0 if unknown.
        price: Price of a core hour, or None.
    """

    num_documents: int
    read_bytes: int
    total_bytes: int
    price: float | None = None

    @property
    def header(self) -> str:
        """First line of the report."""
        if not self._is_known:
            return "speed of cleaning on one core:"
        return f"speed of cleaning on one core, and cost for all {format_bytes(self.total_bytes)} of the input:"

    def row(self, name: str, num_documents: int, seconds: float) -> str:
        """Return a line of the report, given the documents that took these seconds in the dry run."""
        text = f"  {name}: {num_documents / seconds:,.0f} documents/s"
        if self._is_known:
            hours = seconds * max(self.total_bytes / self.read_bytes, 1.0) / SECONDS_PER_HOUR
            text += f", {hours:,.3g} core hours"
            if self.price is not None:
                text += f", price {hours * self.price:,.2f}"
        return text

    @property
    def _is_known(self) -> bool:
        """Whether the sizes are known."""
        return self.read_bytes > 0 and self.total_bytes > 0


class RuleCosts:
    """Measures rules from its creation on."""

    def __init__(self) -> None:
        self._start = time.thread_time()
        self._times: defaultdict[str, _RuleTime] = defaultdict(_RuleTime)

    def add(self, rule: str, seconds: float) -> None:
        """Count a call of a rule, given its processor seconds."""
        times = self._times[rule]
        times.num_later += 1
        if times.num_later:
            times.later_seconds += seconds
        else:
            times.seconds = seconds

    def report(self, projection: Projection) -> Iterator[str]:
        """Yield lines about each rule, about the rest, and about all of it. Too few documents give none."""
        rest = time.thread_time() - self._start
        total = 0.0
        lines = []
        for rule, times in self._times.items():
            rest -= times.seconds + times.later_seconds
            if not times.num_later:
                return
            # The first call, which loads packages and models, counts like the others.
            num_calls = times.num_later + 1
            seconds = times.later_seconds / times.num_later * num_calls
            total += seconds
            lines.append(projection.row(rule, num_calls, seconds))
        if projection.num_documents < 2:
            return
        yield projection.header
        yield from lines
        yield projection.row(REST, projection.num_documents, rest)
        yield projection.row(TOTAL, projection.num_documents, total + rest)
