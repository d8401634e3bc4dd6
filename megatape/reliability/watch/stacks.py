"""Stacks of this process's threads, for showing where a rank hangs."""

import faulthandler
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from megatape.utils.files.files import without_links
from megatape.utils.text.units import format_time


def append_stacks(path: Path, title: str, timeout: float) -> None:
    """Append a title and the stacks of all threads to a file. Ignores errors of the file system.

    Args:
        path: File to append to.
        title: Line above the stacks, after the current time.
        timeout: Maximum seconds to wait, because the file system may be what hangs.
    """
    writer = threading.Thread(target=_append, args=[path, title], daemon=True)
    writer.start()
    writer.join(timeout)


def _append(path: Path, title: str) -> None:
    now = format_time(time.time())
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8", opener=without_links) as file:
            file.write(f"{now}, {title}\n")
            file.flush()
            faulthandler.dump_traceback(file)


def format_stacks(threads: Iterable[threading.Thread]) -> str:
    """Return the stacks of some threads of this process, without those that have ended."""
    frames = sys._current_frames()
    stacks: list[str] = []
    for thread in threads:
        if thread.ident in frames:
            lines = traceback.format_stack(frames[thread.ident])
            stacks.append("".join(lines))
    return "\n".join(stacks)
