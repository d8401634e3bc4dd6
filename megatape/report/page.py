"""One page about runs."""

from collections.abc import Sequence
from pathlib import Path

from megatape.errors import path_errors
from megatape.files import new_folder
from megatape.report import curves, evaluations, events, positions, runs
from megatape.report.load import load_runs
from megatape.report.template import PAGE, fill


@path_errors()
def write_report(directories: Sequence[Path], evaluated: Sequence[Path], output: Path) -> tuple[Path, list[str]]:
    """Write index.html into a new folder.

    Args:
        directories: Folders of runs.
        evaluated: Folders of evaluations besides those below the runs.
        output: The new folder.

    Returns:
        The path of the page, and a line for each file that could not be shown.

    Raises:
        ExistingPath: `output` exists.
        MissingPath: A folder is missing.
        UserError: A folder holds no run.
    """
    notes: list[str] = []
    with new_folder(output) as folder:
        loaded = load_runs(directories)
        groups = curves.grouped(loaded)
        text = fill(
            "page.html",
            ("charts.js", "positions.js"),
            groups=groups,
            overview=runs.overview(loaded),
            data=runs.data_table(loaded),
            differing=runs.differing(loaded),
            runs=loaded,
            charts=curves.charts(groups),
            histories=[(run.name, events.history(run), events.remaining_checkpoints(run)) for run in loaded],
            comparisons=evaluations.compared(evaluations.find_results([*directories, *evaluated]), notes),
            views=positions.position_views(loaded, notes),
            notes=notes,
        )
        (folder / PAGE).write_text(text, encoding="utf-8")
    return output / PAGE, notes
