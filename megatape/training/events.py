"""events.jsonl: what happened to a run, each time it was started. Nothing is ever removed from it."""

import errno
import json
import os
import time
from pathlib import Path
from typing import Literal

Event = Literal[
    "started",
    "resumed",
    "checkpoint",
    "spike",
    "skipped",
    "rewound",
    "slow rank",
    "save failed",
    "stopped",
    "failed",
    "finished",
]


def event_line(event: Event, step: int, detail: str) -> bytes:
    """A line of events.jsonl: `time` in seconds since 1970, `event`, `step` (the last one made) and `detail`."""
    return json.dumps({"time": round(time.time(), 3), "event": event, "step": step, "detail": detail}).encode() + b"\n"


def append_line(path: Path, line: bytes) -> None:
    """Add a line. Raises OSError if it is not written whole."""
    with path.open("ab+", buffering=0) as file:
        if file.tell():  # a line that a full disk truncated must not spoil this one
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else b"\n" + line
        if file.write(line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
