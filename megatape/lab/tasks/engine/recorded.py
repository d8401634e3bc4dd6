"""Reading the results of finished evaluations."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from megatape.lab.tasks.engine.result import Measure, PublishedRows
from megatape.utils.files.json_files import read_json
from megatape.utils.values.validation import as_type

# Written last into the folder of an evaluation (journal.py).
RESULTS = "results.json"


@dataclass(frozen=True)
class RecordedModel:
    """The evaluated model in a results.json."""

    name: str


@dataclass(frozen=True)
class RecordedResults:
    """The part of a results.json (record.py) shown in tables and reports.

    Attributes:
        format: Format version.
        task: Task name.
        model: The evaluated model.
        settings: Task options.
        measures: Numbers compared between models.
        paper: Published values.
    """

    format: Literal[1]
    task: str
    model: RecordedModel
    settings: dict[str, Any]
    measures: list[Measure]
    paper: PublishedRows


def read_results(path: Path) -> RecordedResults:
    """Read a results.json.

    Raises:
        OSError: The file cannot be read.
        ValueError: MegaTAPE did not write it, or it is corrupted.
    """
    return as_type(read_json(path), RecordedResults)
