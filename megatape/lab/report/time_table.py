"""Table about where the time of runs went."""

from megatape.lab.report.run import Run
from megatape.reliability.goodput.parts import TimePart
from megatape.reliability.goodput.table import part_rows
from megatape.utils.text.tables import Table


def time_table(runs: list[Run]) -> Table:
    """Return seconds and share of each part of the runs' time, with a column for each run that recorded events."""
    columns = {}
    for run in runs:
        if not run.time.processes:
            continue
        cells = dict.fromkeys((part.label for part in TimePart), "")
        for row in part_rows(run.time):
            cells[row.label] = f"{row.seconds} ({row.share})"
        columns[run.name] = cells
    if not columns:
        return Table([], [])
    return Table.of_columns(columns)
