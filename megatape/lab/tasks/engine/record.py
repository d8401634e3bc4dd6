"""Content of settings.json and results.json."""

from dataclasses import asdict, dataclass
from typing import Any

from megatape.lab.tasks.engine.result import Measure, PublishedRows

# Version of the format of results.json.
FORMAT = 1


@dataclass(frozen=True)
class ModelOrigin:
    """Provenance of an evaluated model.

    Attributes:
        name: Model name.
        sha256: Hash of the model folder, followed by that of the adapter if one is merged.
        training_code: Whether the training code runs the model.
        tp: Number of ranks sharding the model.
    """

    name: str
    sha256: list[str]
    training_code: bool
    tp: int


@dataclass(frozen=True)
class Examples:
    """Number and hash of an evaluation's examples."""

    n: int
    sha256: str


@dataclass(frozen=True)
class EvaluationSettings:
    """Everything that determines an evaluation's predictions.

    Attributes:
        task: Task name.
        options: Task options by name.
        examples: Number and hash of the examples.
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
    """Results of an evaluation, with the settings they belong to.

    Attributes:
        settings: Settings of the evaluation.
        versions: Software versions.
        measures: Numbers compared between models.
        paper: Published values.
        details: All results of the task, in JSON values.
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
    """Summary line of an evaluation, and its row in the table of models."""

    summary: str
    measures: list[Measure]
