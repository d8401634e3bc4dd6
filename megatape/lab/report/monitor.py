"""Terminal view of runs, with a panel for each run."""

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from megatape.errors import UserError, path_errors
from megatape.lab.report.history import history
from megatape.lab.report.load import file_states, last_written, load_runs
from megatape.lab.report.progress import Progress, progress
from megatape.lab.report.run import STARTS, Run
from megatape.lab.report.run_state import RunState, describe_age
from megatape.lab.report.setup_tables import describe_ranks
from megatape.utils.text.units import format_bytes

# Minimum panel width in characters. As many panels as fit are side by side.
PANEL_WIDTH = 52
# Maximum number of events in a panel. It shows the latest.
NUM_EVENTS = 4
COLORS = {
    RunState.TRAINING: "green",
    RunState.SILENT: "yellow",
    RunState.STOPPED: "yellow",
    RunState.FAILED: "red",
}


class Monitor:
    """A view of runs, rendered by `rich`. Writes nothing to the run directories.

    Args:
        directories: Run directories.

    Raises:
        MissingPath: A directory is missing.
        UserError: A directory holds no run, or is listed twice.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        # Why the view is not up to date, None if it is.
        self._stale_reason: str | None = None
        self._panels = list[Panel]()
        with path_errors():
            self._file_states = file_states(directories)
            self._runs = load_runs(directories)

    def update(self) -> None:
        """Read the runs again if their files have changed. If that fails, keep the content and show the error."""
        try:
            states = file_states(self._directories)
            if states != self._file_states or self._stale_reason is not None:
                self._runs = load_runs(self._directories)
                self._file_states = states
            self._stale_reason = None
        except (OSError, UserError) as error:
            self._stale_reason = _describe_stale(error)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the panels, sharing the width."""
        num_fitting = options.max_width // PANEL_WIDTH
        num_columns = max(1, min(len(self._runs), num_fitting))
        width = options.max_width // num_columns
        try:
            progress_by_run = progress(self._runs)
            self._panels = [_panel(run, one, width) for run, one in zip(self._runs, progress_by_run, strict=True)]
        except OSError as error:  # Rendering reads the age of files.
            self._stale_reason = _describe_stale(error)
        if self._stale_reason is not None:
            yield _text(self._stale_reason, "red")
        yield Columns(self._panels, padding=0)


def _describe_stale(error: Exception) -> str:
    return f"what follows is not up to date: {error}"


def _panel(run: Run, progress_of_run: Progress, width: int) -> Panel:
    rows = Table.grid(padding=(0, 1))
    color = COLORS.get(progress_of_run.state, "blue")
    rows.add_row(_text(progress_of_run.state, color), _text(progress_of_run.note or ""))
    rows.add_row("", ProgressBar(total=1.0, completed=progress_of_run.done, complete_style=color, finished_style=color))
    for name, headline in progress_of_run.headlines.items():
        note = headline.note or ""
        value = headline.value or ""
        rows.add_row(_text(name, "dim"), _text(value, "bold") + _text(f"  {note}", "dim"))
    for name, value in _facts(run):
        rows.add_row(_text(name, "dim"), _text(value))
    events = [line for line in history(run) if "checkpoint" not in line.event]
    for line in events[-NUM_EVENTS:]:
        detail = line.detail or ""
        rows.add_row(_text(line.time[11:], "dim"), _text(f"{line.event} after step {line.steps}  {detail}"))
    return Panel(rows, title=_text(run.name, "bold"), width=width, border_style=color)


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    """Yield name and value for memory, checkpoint, ranks and age, if known."""
    now = time.time()
    memory = run.last("peak_memory")
    if not np.isnan(memory):
        yield "memory", f"{format_bytes(memory)} at the peak, main rank"
    for path in run.folder.list_checkpoints()[:1]:
        age = describe_age(path.stat().st_mtime, now)
        yield "checkpoint", f"{path.name}, {age}"
    ranks = describe_ranks(run)
    if ranks is not None:
        yield "ranks", ranks

    slow_ranks: list[str] = []
    for event in run.events:
        if event.kind in STARTS:
            slow_ranks = []
        elif event.kind == "slow rank":
            slow_ranks.append(event.detail)
    for detail in slow_ranks:
        yield "slow rank", detail

    last = last_written(run)
    if last:
        yield "last line", describe_age(last, now)


def _text(text: str, style: str = "") -> Text:
    """Return text without control characters, because run directories may belong to another user."""
    printable = re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", text)
    return Text(printable, style)
