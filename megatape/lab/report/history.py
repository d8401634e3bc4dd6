"""A run's event history, one readable line per event."""

from dataclasses import dataclass
from datetime import UTC, datetime

from megatape.lab.report.run import Event, Run
from megatape.utils.text.units import plural

# Event kinds collapsed into one line if several follow each other.
COLLAPSED = ("checkpoint",)


@dataclass(frozen=True)
class Line:
    """An event, or several consecutive events of the same kind.

    Attributes:
        time: Time, or first and last time.
        event: Event kind, preceded by a count if there are several.
        steps: Step, or first and last step.
        detail: The event's detail, None for several events.
    """

    time: str
    event: str
    steps: str
    detail: str | None


def history(run: Run) -> list[Line]:
    """Return a run's event history, in order."""
    spans: list[list[Event]] = []
    for event in run.events:
        is_collapsed = event.kind in COLLAPSED
        if spans and is_collapsed and spans[-1][-1].kind == event.kind:
            spans[-1].append(event)
        else:
            spans.append([event])
    return [_format_span(span) for span in spans]


def _format_span(events: list[Event]) -> Line:
    first = events[0]
    last = events[-1]
    if len(events) == 1:
        return Line(_clock(first.time), first.kind, f"{first.step:,}", first.detail)
    steps = f"{first.step:,} to {last.step:,}"
    begin = _clock(first.time)
    end = _clock(last.time)
    is_same_day = begin[:10] == end[:10]
    if is_same_day:
        end = end[11:]
    count = plural(len(events), first.kind)
    return Line(f"{begin} to {end}", count, steps, None)


def _clock(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return "?"
