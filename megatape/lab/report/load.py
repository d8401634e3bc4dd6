"""Contents of run folders, read once, while the run may be writing."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from megatape import imports
from megatape.config import Config, load_recorded_config
from megatape.data.shards.entries import Index
from megatape.data.shards.index import load_index
from megatape.data.training.selection import EARLIER_SELECTION
from megatape.errors import MissingPath, UserError
from megatape.run_folder import RunFolder
from megatape.utils.files import read_lines, real_paths
from megatape.utils.masking import mask_values

COLUMNS = ("step", "loss", "validation_loss", "ema_validation_loss", "lr", "grad_norm", "seconds", "peak_memory", "samples")
STARTS = ("started", "resumed")  # events with the environment of the process that begins


@dataclass(frozen=True)
class Run:
    """The folder of a run, which may still be training.

    Attributes:
        name: Unique among the runs of a report.
        folder: Its paths.
        config: Its resolved configuration.
        metrics: Column of COLUMNS -> float64 [steps], by step; NaN where nothing was recorded.
        selection: Selection of validation samples in its last evaluation (data/training/selection.py), empty before the first.
        part_losses: Validation losses by corpus and input, as far as its last evaluation recorded them.
        events: Objects of events.jsonl, in the order of their lines.
        data: Path -> index of each of its data directories that exists.
    """

    name: str
    folder: RunFolder
    config: Config
    metrics: dict[str, np.ndarray]
    selection: str
    part_losses: dict[str, float]
    events: list[dict[str, Any]]
    data: dict[str, Index]

    @property
    def last_step(self) -> int:
        """The last step that is recorded, 0 if there is none."""
        return int(self.metrics["step"][-1]) if self.metrics["step"].size else 0

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the last start, as text by name; empty for runs of earlier versions."""
        last = next((event.get("environment") for event in reversed(self.events) if event["event"] in STARTS), None)
        return {name: str(value) for name, value in last.items()} if isinstance(last, dict) else {}

    @property
    def evaluated(self) -> tuple[str, int, str]:
        """Data, number and selection of the validation samples. Losses of runs are comparable if these are equal."""
        return self.config.data.model_dump_json(), self.config.evaluation.samples, self.selection

    @property
    def unigram_entropy(self) -> float:
        """Nats per target of a model that knows only the tokens' frequencies; NaN if the data are not there, or several."""
        if self.config.data.mixture or not self.data:
            return np.nan
        return entropy(self.data[self.config.data.path])

    @property
    def missing_modules(self) -> list[str]:
        """Modules of the run that this process has not imported. Without them, the model cannot be built."""
        return imports.not_given(self.config.run.imports)

    def last(self, column: str) -> float:
        """The last value that was recorded, NaN if there is none."""
        recorded = self.metrics[column][~np.isnan(self.metrics[column])]
        return float(recorded[-1]) if recorded.size else np.nan

    @property
    def samples_left(self) -> int:
        """Samples of the steps that are left, by the present batch sizes."""
        consumed = self.config.batches.consumed
        return consumed(self.config.training.steps) - consumed(self.last_step)

    def samples(self, step: int) -> int:
        """Samples until a step, as recorded, else by the present batch sizes."""
        steps, samples = (self.metrics[name][~np.isnan(self.metrics["samples"])] for name in ("step", "samples"))
        return int(np.interp(step, [0, *steps], [0, *samples])) if samples.size else self.config.batches.consumed(step)


def load_runs(directories: Sequence[Path]) -> list[Run]:
    """Read runs. Raises MissingPath without a folder, and UserError if it holds no run or is listed twice."""
    resolved = real_paths(directories)
    return [_load(RunFolder(directory), name) for directory, name in zip(resolved, _names(resolved), strict=True)]


def seen(directories: Sequence[Path]) -> list[tuple[Path, int, int]]:
    """Time and size of the files to which runs append: what changes when there is something new to show."""
    folders = [RunFolder(directory) for directory in directories]
    files = [path for folder in folders for path in (folder.metrics, folder.events) if path.exists()]
    return [(path, (state := path.stat()).st_mtime_ns, state.st_size) for path in files]


def last_written(run: Run) -> float:
    """Time of the last line of metrics or events, 0 if there is none."""
    return max((time for _, time, _ in seen([run.folder.directory])), default=0) / 1e9


def _load(folder: RunFolder, name: str) -> Run:
    if not folder.directory.is_dir():
        raise MissingPath(f"no folder {folder.directory}: give the folder of a run, run.directory of its configuration")
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
        name,
        folder,
        config,
        metrics=_columns(entries),
        selection=selection,
        part_losses=part_losses,
        events=_events(folder.events),
        data=_data(config),
    )


def _names(directories: Sequence[Path]) -> list[str]:
    """The folders' paths as far as they differ: without the parts that all have at the same place.

    Those that lie far apart have their own names, if these differ.
    """
    if len(directories) == 1:
        return [directories[0].name]
    paths = [directory.parts for directory in directories]
    if len({len(parts) for parts in paths}) > 1:
        shared = os.path.commonpath([directory.parent for directory in directories])
        names = [os.path.relpath(directory, shared) for directory in directories]
        own = [directory.name for directory in directories]
        far = any(name.count(os.sep) > 1 for name in names)
        return own if far and len(set(own)) == len(own) else names
    columns = [column for column in zip(*paths, strict=True) if len(set(column)) > 1]
    return ["/".join(parts) for parts in zip(*columns, strict=True)]


def _entries(path: Path) -> list[dict[str, Any]]:
    """Return the last line of metrics for each step, by step."""
    entries = {entry["step"]: entry for _, entry in read_lines(path) if _is_step(entry.get("step"))}
    return [entries[step] for step in sorted(entries)]


def _columns(entries: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    return {name: np.array([_number(entry.get(name)) for entry in entries]) for name in COLUMNS}


def _part_losses(recorded: Any) -> dict[str, float]:
    """Return the losses by corpus and input in a line of metrics, without values that are not finite numbers."""
    if not isinstance(recorded, dict):
        return {}
    losses = {str(name): _number(loss) for name, loss in recorded.items()}
    return {name: loss for name, loss in losses.items() if np.isfinite(loss)}


def _events(path: Path) -> list[dict[str, Any]]:
    kinds = {"time": int | float, "event": str, "step": int, "detail": str}
    entries = [entry for _, entry in read_lines(path)]
    events = [entry for entry in entries if all(isinstance(entry.get(key), kind) for key, kind in kinds.items())]
    return [mask_values(event) for event in events]  # earlier versions recorded URLs with their passwords


def entropy(index: Index) -> float:
    """Nats per target of a model that knows only the frequencies of a data directory's tokens."""
    return (index.answers or index.splits)["train"].unigram_entropy


def _data(config: Config) -> dict[str, Index]:
    indices = {}
    for path in config.data.paths:
        with suppress(OSError, ValueError):
            indices[path] = load_index(Path(path))
    return indices


def _is_step(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**53


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else np.nan
