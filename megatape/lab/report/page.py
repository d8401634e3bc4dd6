"""One page about runs."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from megatape.errors import UserError, path_errors
from megatape.lab.report import curves, evaluations, positions, runs
from megatape.lab.report.load import load_runs
from megatape.lab.report.progress import progress
from megatape.lab.report.template import GENERATOR, PAGE, fill
from megatape.utils.files import new_folder, open_regular, write_atomically

MAX_RENDER_SHARE = 0.1  # of the time may go into making the page again


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
    """Write the page as `write_report`, and again and again, until all runs have finished.

    Browsers read it again by themselves meanwhile. The runs' folders are only read. An interrupt ends it well.

    Args:
        directories: Folders of runs.
        evaluated: Folders of evaluations besides those below the runs.
        output: A new folder, or that of an earlier page.
        seconds: Time between two pages.

    Yields:
        What `write_report` returns, after each page.

    Raises:
        ExistingPath, MissingPath, UserError: As `write_report`, before the first page. Later ones are yielded as lines.
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
    states = progress(loaded)
    text = fill(
        "page.html",
        ("charts.js", "positions.js"),
        refresh,
        groups=groups,
        group_of={run.name: number for number, group in enumerate(groups) for run in group.runs},
        progress=states,
        overview=runs.overview(loaded),
        data=runs.data_table(loaded),
        differing=runs.differing(loaded),
        runs=loaded,
        charts=curves.charts(groups),
        clocks=[curves.clock(group) for group in groups],
        histories=[(run.name, runs.history(run)) for run in loaded],
        comparisons=evaluations.compared(evaluations.find_results([*directories, *evaluated]), notes),
        views=positions.position_views(loaded, notes),
        notes=notes,
    )
    return text, notes, all(state.state == "finished" for state in states)


def _is_page(path: Path) -> bool:
    """Whether an earlier command wrote this page."""
    try:
        with open_regular(path) as file:
            return f'<meta name="generator" content="{GENERATOR}">' in file.read(1000).decode(errors="replace")
    except (OSError, ValueError):
        return False
