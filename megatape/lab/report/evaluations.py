"""Results of evaluations: a table for each task and its settings, with the paper's values below, and pictures."""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from megatape.errors import MissingPath
from megatape.lab.pictures import dark_version
from megatape.lab.tasks.engine.result import Measure
from megatape.utils.files import read_regular
from megatape.utils.json_files import read_json
from megatape.utils.units import format_bytes
from megatape.utils.validation import as_type

RESULTS = "results.json"
MAX_PICTURE_BYTES = 2**20


@dataclass(frozen=True)
class Model:
    """The model of an evaluation."""

    name: str


@dataclass(frozen=True)
class Results:
    """The part of a results.json (megatape/lab/tasks/engine/evaluation.py) that the report shows."""

    format: Literal[1]
    task: str
    model: Model
    settings: dict[str, Any]
    measures: list[Measure]
    paper: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Comparison:
    """Models evaluated by the same task with the same settings.

    Attributes:
        task: Name of the task.
        settings: Settings of the task.
        rows: Name of each model, and its measures by name.
        paper: Published values: row -> measure -> value.
        pictures: Name of a model, and a picture in base64 for light and for dark pages, "" if the dark one is missing.
    """

    task: str
    settings: dict[str, Any]
    rows: list[tuple[str, dict[str, Measure]]] = field(default_factory=list)
    paper: dict[str, dict[str, float]] = field(default_factory=dict)
    pictures: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def columns(self) -> list[str]:
        """Names of the measures, in the order of the first model that has them."""
        return list(dict.fromkeys(name for _, measures in self.rows for name in measures))

    @property
    def comparable(self) -> dict[str, dict[str, float]]:
        """Rows of the paper that have some of these measures."""
        columns = set(self.columns)
        return {name: values for name, values in self.paper.items() if columns & values.keys()}


def find_results(folders: Sequence[Path]) -> list[Path]:
    """Find every results.json below the folders, without duplicates.

    Raises:
        MissingPath: A folder is missing.
    """
    for folder in folders:
        if not folder.is_dir():
            raise MissingPath(f"no folder {folder}: give one below which `megatape evaluate` wrote its results")
    found: dict[Path, None] = {}
    for folder in folders:
        for path in sorted(folder.rglob(RESULTS)):
            if path.is_file():
                found[path.resolve()] = None
    return list(found)


def compared(paths: list[Path], notes: list[str]) -> list[Comparison]:
    """Group results by task and settings, in the order of the tasks.

    Args:
        paths: Files of results.
        notes: Gets a line for each file that MegaTAPE did not write.
    """
    comparisons: dict[tuple[str, str], Comparison] = {}
    for path in paths:
        try:
            results = as_type(read_json(path), Results)
        except (OSError, ValueError) as error:
            notes.append(f"{path} is not shown: it holds no results of an evaluation ({error})")
            continue
        key = (results.task, json.dumps(results.settings, sort_keys=True))
        comparison = comparisons.setdefault(key, Comparison(results.task, results.settings))
        row = (results.model.name, {measure.name: measure for measure in results.measures})
        # A copy of the results, or the same evaluation in another folder.
        if row in comparison.rows:
            continue
        comparison.rows.append(row)
        comparison.paper.update(results.paper)
        # A picture of a single number shows nothing new.
        if len(results.measures) > 1:
            for light, dark in _pictures(path.parent, notes):
                comparison.pictures.append((results.model.name, light, dark))
    return sorted(comparisons.values(), key=lambda comparison: comparison.task)


def _pictures(folder: Path, notes: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the pictures in a folder in base64, each for light and for dark pages."""
    files = {}
    for path in sorted(folder.glob("*.png")):
        if path.is_file():
            files[path] = _encoded(path, notes)
    dark = {dark_version(path) for path in files}
    for path, light in files.items():
        if light and path not in dark:
            yield light, files.get(dark_version(path), "")


def _encoded(path: Path, notes: list[str]) -> str:
    """Return a picture in base64. If it is too large, return "" and add a note."""
    if path.stat().st_size <= MAX_PICTURE_BYTES:
        return base64.b64encode(read_regular(path)).decode()
    notes.append(f"{path} is not shown: it is larger than {format_bytes(MAX_PICTURE_BYTES)}")
    return ""
