"""Content of settings.json and results.json."""

from dataclasses import asdict, dataclass
from typing import Any

from megatape.lab.tasks.engine.result import Measure, PublishedRows

# Format version of results.json.
FORMAT = 1


@dataclass(frozen=True)
class ModelOrigin:
    """An evaluated model's provenance.

    Attributes:
        name: Model name.
        sha256: Hash of the model folder, then of the merged adapter if there is one.
        training_code: Whether the training code runs the model.
        tp: Number of ranks sharding the model.
    """

    name: str
    sha256: list[str]
    training_code: bool
    tp: int


@dataclass(frozen=True)
class Examples:
    """An evaluation's number of examples, and their hash."""

    n: int
    sha256: str


@dataclass(frozen=True)
class EvaluationSettings:
    """Everything that determines an evaluation's predictions.

    Attributes:
        task: Task name.
        options: Task options by name.
        examples: Number of examples, and their hash.
        model: Provenance of the model.
    """

    task: str
    options: dict[str, Any]
    examples: Examples
    model: ModelOrigin

    def content(self) -> dict[str, Any]:
        """Return the content of settings.json."""
        return {
            "format": FORMAT,
            "task": self.task,
            "settings": self.options,
            "examples": asdict(self.examples),
            "model": asdict(self.model),
        }


@dataclass(frozen=True)
class EvaluationResults:
    """An evaluation's results, with its settings.

    Attributes:
        settings: The evaluation's settings.
        versions: Software versions.
        measures: Numbers compared between models.
        paper: Published values.
        details: All results in JSON values.
    """

    settings: EvaluationSettings
    versions: dict[str, str]
    measures: list[Measure]
    paper: PublishedRows
    details: dict[str, Any]

    def content(self) -> dict[str, Any]:
        """Return the content of results.json."""
        return {
            **self.settings.content(),
            "versions": self.versions,
            "measures": [asdict(measure) for measure in self.measures],
            "paper": self.paper,
            "details": self.details,
        }


@dataclass(frozen=True)
class Outcome:
    """An evaluation's summary line, and its row in the table of models."""

    summary: str
    measures: list[Measure]
