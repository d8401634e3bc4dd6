"""Reads the time of a run from its directory."""

from megatape.reliability.goodput.parts import as_seconds
from megatape.reliability.goodput.run_time import RunTime
from megatape.run_folder import RunFolder, read_steps
from megatape.utils.files.json_lines import read_lines


def read_run_time(folder: RunFolder) -> RunTime:
    """Read the time of a run, which may be training.

    Args:
        folder: Run directory. Without events, the time is empty.

    Raises:
        OSError: A file cannot be read.
    """
    run_time = earlier_run_time(folder)
    if not run_time.processes or run_time.has_ended:
        return run_time
    newer = {}
    for step, seconds in _read_step_seconds(folder).items():
        if step > run_time.last_step:
            newer[step] = seconds
    if newer:
        elapsed = folder.metrics.stat().st_mtime - run_time.last_time
        run_time.add_recorded_steps(max(newer), sum(newer.values()), elapsed)
    return run_time


def earlier_run_time(folder: RunFolder) -> RunTime:
    """Read the time of a run until its last event.

    Args:
        folder: Run directory. Without events, the time is empty.

    Raises:
        OSError: A file cannot be read.
    """
    run_time = RunTime(_read_step_seconds(folder))
    for _, entry in read_lines(folder.events):
        run_time.add(entry)
    return run_time


def _read_step_seconds(folder: RunFolder) -> dict[int, float]:
    """Return the seconds of each step in metrics.jsonl. Lines without them are skipped."""
    seconds_of_steps = {}
    for entry in read_steps(folder.metrics):
        try:
            seconds_of_steps[entry["step"]] = as_seconds(entry["seconds"])
        except (ValueError, KeyError, TypeError):
            continue
    return seconds_of_steps
