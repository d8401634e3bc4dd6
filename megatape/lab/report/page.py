"""The page about runs."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from megatape.errors import UserError, path_errors
from megatape.lab.report import setup_tables
from megatape.lab.report.curves import charts
from megatape.lab.report.evaluations import compare_results, find_results
from megatape.lab.report.groups import group_runs, make_clock
from megatape.lab.report.history import history
from megatape.lab.report.load import load_runs
from megatape.lab.report.positions import load_positions
from megatape.lab.report.progress import progress
from megatape.lab.report.run_state import RunState
from megatape.lab.report.template import CHART_SCRIPTS, GENERATOR, PAGE, fill
from megatape.lab.report.time_table import time_table
from megatape.utils.files.atomic import new_folder, write_atomically
from megatape.utils.files.files import open_regular

# Maximum share of time spent rendering the page.
MAX_RENDER_SHARE = 0.1


class PageContent(NamedTuple):
    """Content of a page about runs.

    Attributes:
        values: Template variables.
        notes: Notes on files that are not shown, and on runs that are not comparable.
        is_final: Whether all runs have finished.
    """

    values: dict[str, Any]
    notes: list[str]
    is_final: bool

    def html(self, refresh: float | None = None) -> str:
        """Render the page. With `refresh`, it reloads itself after this number of seconds."""
        return fill("page.html", (*CHART_SCRIPTS, "positions.js"), refresh, **self.values)


@path_errors()
def write_report(directories: Sequence[Path], evaluated: Sequence[Path], output: Path) -> tuple[Path, list[str]]:
    """Write index.html into a new folder.

    Args:
        directories: Run directories.
        evaluated: Folders of evaluations, in addition to those inside the run directories.
        output: New folder.

    Returns:
        Path of the page, and its notes (see PageContent).

    Raises:
        ExistingPath: `output` exists.
        MissingPath: A folder is missing.
        UserError: A folder holds no run.
    """
    with new_folder(output) as folder:
        content = _read(directories, evaluated)
        (folder / PAGE).write_text(content.html(), encoding="utf-8")
    return output / PAGE, content.notes


def watch_report(
    directories: Sequence[Path], evaluated: Sequence[Path], output: Path, seconds: float
) -> Iterator[tuple[Path, list[str]]]:
    """Write the page like `write_report`, repeatedly until all runs have finished.

    An open page reloads itself. Run directories are only read. Ctrl-C ends the watch cleanly.

    Args:
        directories: Run directories.
        evaluated: Folders of evaluations, in addition to those inside the run directories.
        output: New folder, or the folder of an earlier page.
        seconds: Time between updates.

    Yields:
        Path of the page and its notes, after each update.

    Raises:
        ExistingPath, MissingPath, UserError: See `write_report`. Errors after the first page are yielded as notes.
    """
    path = output / PAGE
    with path_errors():
        content = _read(directories, evaluated)
        if _is_page(path):
            write_atomically(path, content.html(seconds).encode())
        else:
            with new_folder(output) as folder:
                (folder / PAGE).write_text(content.html(seconds), encoding="utf-8")
    try:
        yield path, content.notes
        render_seconds = 0.0
        while not content.is_final:
            time.sleep(max(seconds, render_seconds / MAX_RENDER_SHARE))
            started = time.monotonic()
            try:
                content = _read(directories, evaluated)
            except (OSError, UserError) as error:
                yield path, [f"the page stays as it was: {error}"]
                continue
            write_atomically(path, content.html(seconds).encode())
            render_seconds = time.monotonic() - started
            yield path, content.notes
    except KeyboardInterrupt:
        pass
    finally:
        # Open pages stop reloading.
        write_atomically(path, content.html().encode())


def _read(directories: Sequence[Path], evaluated: Sequence[Path]) -> PageContent:
    """Read the runs and their evaluations."""
    runs = load_runs(directories)
    notes = []
    incomparable = setup_tables.note_if_incomparable(runs)
    if incomparable is not None:
        notes.append(incomparable)
    comparisons = compare_results(find_results([*directories, *evaluated]), notes)
    positions = load_positions(runs, notes)

    groups = group_runs(runs)
    group_of = {}
    for number, group in enumerate(groups):
        for run in group.runs:
            group_of[run.name] = number
    progress_by_run = progress(runs)
    values = {
        "groups": groups,
        "group_of": group_of,
        "progress": progress_by_run,
        "overview": setup_tables.overview(runs),
        "data": setup_tables.data_table(runs),
        "differences": setup_tables.differences(runs),
        "runs": runs,
        "charts": charts(groups),
        "clocks": [make_clock(group) for group in groups],
        "histories": [(run.name, history(run)) for run in runs],
        "comparisons": comparisons,
        "views": positions,
        "time": time_table(runs),
        "notes": notes,
    }
    is_final = all(one.state is RunState.FINISHED for one in progress_by_run)
    return PageContent(values, notes, is_final)


def _is_page(path: Path) -> bool:
    """Whether MegaTAPE wrote this page."""
    try:
        with open_regular(path) as file:
            return f'<meta name="generator" content="{GENERATOR}">' in file.read(1000).decode(errors="replace")
    except (OSError, ValueError):
        return False
