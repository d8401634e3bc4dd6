"""Reads run directories, whose runs may be writing to them."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from megatape.config import load_recorded_config
from megatape.data.shards.entries import Index
from megatape.data.shards.index import load_index
from megatape.data.training.selection import EARLIER_SELECTION
from megatape.errors import MissingPath, UserError
from megatape.lab.names import real_paths
from megatape.lab.report.run import Event, Run
from megatape.reliability.goodput.read import read_run_time
from megatape.run_folder import RunFolder
from megatape.utils.files.json_lines import read_lines
from megatape.utils.text.url_secrets import mask_secrets_in_json

# Columns of metrics shown in reports.
COLUMNS = ("step", "loss", "validation_loss", "ema_validation_loss", "lr", "grad_norm", "seconds", "peak_memory", "samples")
# Required event fields -> type.
EVENT_FIELDS = {"time": int | float, "event": str, "step": int, "detail": str}
MAX_NUMBER = 1e300
# Smallest integer that a float64 may not represent exactly, minus one.
MAX_STEP = 2**53


class FileState(NamedTuple):
    """State of a file that a run appends to. It differs after each new line."""

    path: Path
    modified_ns: int
    size: int


def load_runs(directories: Sequence[Path]) -> list[Run]:
    """Read run directories.

    Raises:
        MissingPath: A directory is missing.
        UserError: A directory holds no run, or is listed twice.
    """
    resolved = real_paths(directories)
    return [_load(RunFolder(directory), name) for directory, name in zip(resolved, _names(resolved), strict=True)]


def file_states(directories: Sequence[Path]) -> list[FileState]:
    """Return states of the runs' metrics and events. They change when there is something new to show."""
    states = []
    for directory in directories:
        folder = RunFolder(directory)
        for path in (folder.metrics, folder.events):
            if path.exists():
                status = path.stat()
                states.append(FileState(path, status.st_mtime_ns, status.st_size))
    return states


def last_written(run: Run) -> float:
    """Return the time when metrics or events were last written, in seconds since 1970. 0 if never."""
    times = [state.modified_ns for state in file_states([run.folder.directory])]
    return max(times, default=0) / 1e9


def _load(folder: RunFolder, name: str) -> Run:
    if not folder.directory.is_dir():
        raise MissingPath(f"no folder {folder.directory}: give a run directory, run.directory of its configuration")
    if not folder.config.is_file():
        raise UserError(f"{folder.directory} holds no run: it has no {folder.config.name}; give run.directory of a run")
    config = load_recorded_config(folder.config, masked=True)
    entries = _entries(folder.metrics)
    evaluated = [entry for entry in entries if "validation_loss" in entry]
    selection = ""
    part_losses: dict[str, float] = {}
    if evaluated:
        selection = str(evaluated[-1].get("validation_selection", EARLIER_SELECTION))
        part_losses = _part_losses(evaluated[-1].get("validation_losses"))
    return Run(
        name=name,
        folder=folder,
        config=config,
        metrics=_columns(entries),
        selection=selection,
        part_losses=part_losses,
        events=_events(folder.events),
        data=_data(config.data.paths),
        time=read_run_time(folder),
    )


def _names(directories: Sequence[Path]) -> list[str]:
    """Name runs after their paths, without common parts. Runs in distant folders are named after their directories."""
    if len(directories) == 1:
        return [directories[0].name]
    paths = [directory.parts for directory in directories]
    if len({len(parts) for parts in paths}) > 1:
        shared = os.path.commonpath([directory.parent for directory in directories])
        names = [os.path.relpath(directory, shared) for directory in directories]
        last_parts = [directory.name for directory in directories]
        are_distinct = len(set(last_parts)) == len(last_parts)
        are_far_apart = any(name.count(os.sep) > 1 for name in names)
        if are_far_apart and are_distinct:
            return last_parts
        return names
    columns = [column for column in zip(*paths, strict=True) if len(set(column)) > 1]
    return ["/".join(parts) for parts in zip(*columns, strict=True)]


def _entries(path: Path) -> list[dict[str, Any]]:
    """Return the last metrics line for each step, by step."""
    entries = {}
    for _, entry in read_lines(path):
        if _is_step(entry.get("step")):
            entries[entry["step"]] = entry
    return [entries[step] for step in sorted(entries)]


def _columns(entries: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    columns = {}
    for name in COLUMNS:
        columns[name] = np.array([_number(entry.get(name)) for entry in entries])
    return columns


def _part_losses(recorded: Any) -> dict[str, float]:
    """Return the finite losses by corpus and input in a metrics line."""
    if not isinstance(recorded, dict):
        return {}
    losses = {str(name): _number(loss) for name, loss in recorded.items()}
    return {name: loss for name, loss in losses.items() if np.isfinite(loss)}


def _events(path: Path) -> list[Event]:
    events = []
    for _, entry in read_lines(path):
        is_valid = all(isinstance(entry.get(key), kind) for key, kind in EVENT_FIELDS.items())
        if is_valid:
            # Earlier versions recorded URLs with their passwords.
            events.append(_event(mask_secrets_in_json(entry)))
    return events


def _event(entry: dict[str, Any]) -> Event:
    recorded = entry.get("environment")
    environment = {}
    if isinstance(recorded, dict):
        environment = {name: str(value) for name, value in recorded.items()}
    return Event(entry["time"], entry["event"], entry["step"], entry["detail"], environment)


def _data(paths: Sequence[str]) -> dict[str, Index]:
    """Read the indices of existing data directories: path -> index."""
    indices = {}
    for path in paths:
        with suppress(OSError, ValueError):
            indices[path] = load_index(Path(path))
    return indices


def _is_step(value: Any) -> bool:
    return type(value) is int and 0 < value < MAX_STEP


def _number(value: Any) -> float:
    if isinstance(value, int | float) and abs(value) < MAX_NUMBER:
        return float(value)
    return np.nan
