"""The page about runs."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from megatape.errors import UserError, path_errors
from megatape.lab.report import curves, evaluations, positions, runs
from megatape.lab.report.load import load_runs
from megatape.lab.report.progress import progress
from megatape.lab.report.run_state import RunState
from megatape.lab.report.template import CHART_SCRIPTS, GENERATOR, PAGE, fill
from megatape.utils.atomic import new_folder, write_atomically
from megatape.utils.files import open_regular

# Maximum share of the time for rendering the page.
MAX_RENDER_SHARE = 0.1


@path_errors()
def write_report(directories: Sequence[Path], evaluated: Sequence[Path], output: Path) -> tuple[Path, list[str]]:
    """Write index.html into a new folder.

    Args:
        directories: Folders of runs.
        evaluated: Folders of evaluations besides those below the runs.
        output: The new folder.

    Returns:
        Path of the page, and notes on files that could not be shown and on runs that are not comparable.

    Raises:
        ExistingPath: `output` exists.
        MissingPath: A folder is missing.
        UserError: A folder holds no run.
    """
    with new_folder(output) as folder:
        text, notes, _ = _page(directories, evaluated)
        (folder / PAGE).write_text(text, encoding="utf-8")
    return output / PAGE, notes


def watch_report(
    directories: Sequence[Path], evaluated: Sequence[Path], output: Path, seconds: float
) -> Iterator[tuple[Path, list[str]]]:
    """Write the page like `write_report`, repeatedly until all runs have finished.

    An open page reloads itself. Nothing is written to the runs' folders. Ctrl-C ends the watch cleanly.

    Args:
        directories: Folders of runs.
        evaluated: Folders of evaluations besides those below the runs.
        output: A new folder, or the folder of an earlier page.
        seconds: Time between two pages.

    Yields:
        Path of the page and notes (see `write_report`), after each page.

    Raises:
        ExistingPath, MissingPath, UserError: See `write_report`. Errors after the first page are yielded as notes.
    """
    page = output / PAGE
    with path_errors():
        text, notes, finished = _page(directories, evaluated, seconds)
        if _is_page(page):
            write_atomically(page, text.encode())
        else:
            with new_folder(output) as folder:
                (folder / PAGE).write_text(text, encoding="utf-8")
    try:
        yield page, notes
        took = 0.0
        while not finished:
            time.sleep(max(seconds, took / MAX_RENDER_SHARE))
            begun = time.monotonic()
            try:
                text, notes, finished = _page(directories, evaluated, seconds)
            except (OSError, UserError) as error:
                yield page, [f"the page stays as it was: {error}"]
                continue
            write_atomically(page, text.encode())
            took = time.monotonic() - begun
            yield page, notes
    except KeyboardInterrupt:
        pass
    finally:
        write_atomically(page, text.replace(f' data-refresh="{seconds}"', "", 1).encode())


def _page(directories: Sequence[Path], evaluated: Sequence[Path], refresh: float | None = None) -> tuple[str, list[str], bool]:
    """Return the page, its notes (see `write_report`), and whether all runs have finished."""
    loaded = load_runs(directories)
    notes = runs.incomparable(loaded)
    groups = curves.grouped(loaded)
    group_of = {}
    for number, group in enumerate(groups):
        for run in group.runs:
            group_of[run.name] = number
    states = progress(loaded)
    results = evaluations.find_results([*directories, *evaluated])
    text = fill(
        "page.html",
        (*CHART_SCRIPTS, "positions.js"),
        refresh,
        groups=groups,
        group_of=group_of,
        progress=states,
        overview=runs.overview(loaded),
        data=runs.data_table(loaded),
        differing=runs.differing(loaded),
        runs=loaded,
        charts=curves.charts(groups),
        clocks=[curves.clock(group) for group in groups],
        histories=[(run.name, runs.history(run)) for run in loaded],
        comparisons=evaluations.compared(results, notes),
        views=positions.position_views(loaded, notes),
        notes=notes,
    )
    return text, notes, all(state.state is RunState.FINISHED for state in states)


def _is_page(path: Path) -> bool:
    """Whether an earlier command wrote this page."""
    try:
        with open_regular(path) as file:
            return f'<meta name="generator" content="{GENERATOR}">' in file.read(1000).decode(errors="replace")
    except (OSError, ValueError):
        return False
