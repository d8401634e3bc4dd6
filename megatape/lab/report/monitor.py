"""The state of runs as a view in a terminal, a panel for each run."""

import re
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
from megatape.lab.report.load import STARTS, Run, last_written, load_runs, seen
from megatape.lab.report.progress import Progress, describe_age, progress
from megatape.lab.report.runs import describe_ranks, history
from megatape.utils.units import format_bytes

PANEL_WIDTH = 52  # characters, at least: as many panels as the terminal has room for are side by side
NUM_EVENTS = 4  # the last ones, which a panel lists
COLOURS = {"training": "green", "silent": "yellow", "stopped": "yellow", "failed": "red"}


class Monitor:
    """A view of runs, for `rich` to show. Their folders are only read.

    Args:
        directories: Folders of the runs.

    Raises:
        MissingPath: There is no such folder.
        UserError: A folder holds no run, or is given twice.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        self._fault = ""
        self._panels = list[Panel]()
        with path_errors():
            self._seen = seen(directories)
            self._runs = load_runs(directories)

    def look(self) -> None:
        """Read the runs again if their files have changed. After an error of a file system the view says so and stays."""
        try:
            if (now := seen(self._directories)) != self._seen or self._fault:
                self._runs = load_runs(self._directories)
                self._seen = now
            self._fault = ""
        except (OSError, UserError) as error:
            self._fault = f"what follows is not up to date: {error}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The panels, which share the width."""
        width = options.max_width // max(1, min(len(self._runs), options.max_width // PANEL_WIDTH))
        try:
            states = progress(self._runs)
            self._panels = [_panel(run, state, width) for run, state in zip(self._runs, states, strict=True)]
        except OSError as error:  # the panels say how old files are
            self._fault = f"what follows is not up to date: {error}"
        if self._fault:
            yield _text(self._fault, "red")
        yield Columns(self._panels, padding=0)


def _panel(run: Run, state: Progress, width: int) -> Panel:
    rows = Table.grid(padding=(0, 1))
    colour = COLOURS.get(state.state, "blue")
    rows.add_row(_text(state.state, colour), _text(state.note))
    rows.add_row("", ProgressBar(total=1.0, completed=state.done, complete_style=colour, finished_style=colour))
    for name, figure in state.figures.items():
        rows.add_row(_text(name, "dim"), _text(figure.value, "bold") + _text(f"  {figure.note}", "dim"))
    for name, value in _facts(run):
        rows.add_row(_text(name, "dim"), _text(value))
    for line in [line for line in history(run) if "checkpoint" not in line.event][-NUM_EVENTS:]:
        rows.add_row(_text(line.time[11:], "dim"), _text(f"{line.event} after step {line.steps}  {line.detail}"))
    return Panel(rows, title=_text(run.name, "bold"), width=width, border_style=colour)


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    """Memory, checkpoint, ranks and age, as far as they are known."""
    if not np.isnan(memory := run.last("peak_memory")):
        yield "memory", f"{format_bytes(memory)} at the peak, main rank"
    for path in run.folder.list_checkpoints()[:1]:
        yield "checkpoint", f"{path.name}, {describe_age(path.stat().st_mtime)}"
    if ranks := describe_ranks(run):
        yield "ranks", ranks
    begin = max((number for number, event in enumerate(run.events) if event["event"] in STARTS), default=0)
    yield from (("slow rank", event["detail"]) for event in run.events[begin:] if event["event"] == "slow rank")
    if last := last_written(run):
        yield "last line", describe_age(last)


def _text(text: str, style: str = "") -> Text:
    """Text that cannot change the terminal: run folders may be another user's."""
    return Text(re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", text), style)
