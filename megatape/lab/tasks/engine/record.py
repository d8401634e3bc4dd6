"""Records of an evaluation on disk: the content of settings.json and results.json."""

from dataclasses import asdict, dataclass
from typing import Any

from megatape.lab.tasks.engine.result import Measure

# Version of the format of results.json.
FORMAT = 1


@dataclass(frozen=True)
class ModelOrigin:
    """Provenance of an evaluated model.

    Attributes:
        name: Name of the model.
        sha256: Hash of the model's folder and, if an adapter is merged into it, of the adapter's.
        training_code: Whether the code of training runs it.
        tp: Number of processes that divide it.
    """

    name: str
    sha256: list[str]
    training_code: bool
    tp: int


@dataclass(frozen=True)
class Examples:
    """The examples of an evaluation.

    Attributes:
        n: Number of examples.
        sha256: Hash of all examples.
    """

    n: int
    sha256: str


@dataclass(frozen=True)
class EvaluationSettings:
    """Everything that determines the predictions of an evaluation.

    Attributes:
        task: Name of the task.
        options: Options of the task by name.
        examples: Examples of the task.
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
    """Results of an evaluation.

    Attributes:
        settings: Settings of the evaluation.
        versions: Versions of the software.
        measures: Numbers for comparing models.
        paper: Published values: row -> name of a measure -> value.
        details: All results of the task, in JSON values.
    """

    settings: EvaluationSettings
    versions: dict[str, str]
    measures: list[Measure]
    paper: dict[str, dict[str, float]]
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
    """Outcome of an evaluation, for the console and the table of models.

    Attributes:
        summary: The results in one line.
        measures: Numbers in the model's row of the table.
    """

    summary: str
    measures: list[Measure]
