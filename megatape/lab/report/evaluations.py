"""Evaluation results: a table for each task and its settings, followed by published values, and pictures."""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megatape.errors import MissingPath
from megatape.lab.pictures import dark_version
from megatape.lab.tasks.engine.recorded import RESULTS, RecordedResults, read_results
from megatape.lab.tasks.engine.result import Measure, PublishedRows
from megatape.utils.files.files import read_regular
from megatape.utils.text.units import format_bytes

MAX_PICTURE_BYTES = 2**20


@dataclass(frozen=True)
class ModelRow:
    """Measures of a model, by name."""

    model: str
    measures: dict[str, Measure]


@dataclass(frozen=True)
class Picture:
    """A picture of a model's results in base64, for light pages and, if it exists, for dark ones."""

    model: str
    light: str
    dark: str | None


@dataclass(frozen=True)
class Comparison:
    """Models evaluated by the same task with the same settings.

    Attributes:
        task: Task name.
        settings: Task options.
        rows: Measures of each model.
        paper: Published values.
        pictures: Pictures of the models' results.
    """

    task: str
    settings: dict[str, Any]
    rows: list[ModelRow] = field(default_factory=list)
    paper: PublishedRows = field(default_factory=dict)
    pictures: list[Picture] = field(default_factory=list)

    @property
    def columns(self) -> list[str]:
        """Measure names, in the order of their first model."""
        names: dict[str, None] = {}
        for row in self.rows:
            names |= dict.fromkeys(row.measures)
        return list(names)

    @property
    def comparable(self) -> PublishedRows:
        """Published rows with any of these measures."""
        columns = set(self.columns)
        return {name: values for name, values in self.paper.items() if columns & values.keys()}


def find_results(folders: Sequence[Path]) -> list[Path]:
    """Return every results.json below the folders, without duplicates.

    Raises:
        MissingPath: A folder is missing.
    """
    for folder in folders:
        if not folder.is_dir():
            raise MissingPath(f"no folder {folder}: give one below which `megatape evaluate` wrote its results")
    paths: dict[Path, None] = {}
    for folder in folders:
        for path in sorted(folder.rglob(RESULTS)):
            if path.is_file():
                paths[path.resolve()] = None
    return list(paths)


def compare_results(paths: list[Path], notes: list[str]) -> list[Comparison]:
    """Return the results grouped by task and settings, sorted by task.

    Args:
        paths: Paths of results.json files.
        notes: Receives a line for each file that is not shown.
    """
    comparisons: dict[tuple[str, str], Comparison] = {}
    for path in paths:
        results = _read_or_note(path, notes)
        if results is None:
            continue
        key = (results.task, json.dumps(results.settings, sort_keys=True))
        comparison = comparisons.setdefault(key, Comparison(results.task, results.settings))
        model = results.model.name
        row = ModelRow(model, {measure.name: measure for measure in results.measures})
        # Skip copies, and repetitions in other folders.
        if row in comparison.rows:
            continue
        comparison.rows.append(row)
        comparison.paper.update(results.paper)
        # With a single measure, the picture would repeat the table.
        if len(results.measures) > 1:
            comparison.pictures.extend(_pictures(path.parent, model, notes))
    return sorted(comparisons.values(), key=lambda comparison: comparison.task)


def _read_or_note(path: Path, notes: list[str]) -> RecordedResults | None:
    """Read a results.json. If MegaTAPE did not write it, add a note and return None."""
    try:
        return read_results(path)
    except (OSError, ValueError) as error:
        notes.append(f"{path} is not shown: it holds no results of an evaluation ({error})")
        return None


def _pictures(folder: Path, model: str, notes: list[str]) -> Iterator[Picture]:
    """Yield the pictures in a folder."""
    files = {}
    for path in sorted(folder.glob("*.png")):
        if path.is_file():
            files[path] = _encode(path, notes)
    dark_paths = {dark_version(path) for path in files}
    for path, light in files.items():
        if light and path not in dark_paths:
            yield Picture(model, light, files.get(dark_version(path)))


def _encode(path: Path, notes: list[str]) -> str | None:
    """Return a picture in base64. If it is too large, add a note and return None."""
    if path.stat().st_size <= MAX_PICTURE_BYTES:
        return base64.b64encode(read_regular(path)).decode()
    notes.append(f"{path} is not shown: it is larger than {format_bytes(MAX_PICTURE_BYTES)}")
    return None
