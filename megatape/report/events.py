"""History of a run: starts, checkpoints, failures, repeated steps."""

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

from megatape.report.load import Run

QUIET = ("checkpoint",)  # events of which many in a row are one line


@dataclass(frozen=True)
class Line:
    """One event, or several of a kind in a row. time, steps, detail: as text."""

    time: str
    event: str
    steps: str
    detail: str


def history(run: Run) -> list[Line]:
    """The events of a run, in order."""
    spans = groupby(enumerate(run.events), lambda entry: entry[1]["event"] if entry[1]["event"] in QUIET else entry[0])
    return [_line([event for _, event in span]) for _, span in spans]


def remaining_checkpoints(run: Run) -> str:
    """The checkpoints of a run, and metrics of earlier starts."""
    names = [path.name for path in reversed(run.folder.list_checkpoints())]
    earlier = sorted(path.name for path in run.folder.directory.glob("metrics-*.jsonl"))
    parts = [f"Checkpoints kept: {', '.join(names)}." if names else "No checkpoint is kept."]
    if earlier:
        parts.append(f"Metrics of starts that ended before their first checkpoint: {', '.join(earlier)}.")
    return " ".join(parts)


def _line(span: list[dict]) -> Line:
    first, last = span[0], span[-1]
    if len(span) == 1:
        return Line(_clock(first["time"]), first["event"], f"{first['step']:,}", first["detail"])
    steps = f"{first['step']:,} to {last['step']:,}"
    begin, end = _clock(first["time"]), _clock(last["time"])
    same_day = begin[:10] == end[:10]
    return Line(f"{begin} to {end[11:] if same_day else end}", f"{len(span)} {first['event']}s", steps, "")


def _clock(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return "?"
