"""Measurements of trained models, and the files that hold them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter, ValidationError

from megatape.config import Config
from megatape.data.training.selection import EARLIER_SELECTION, Selection
from megatape.errors import UserError
from megatape.utils.atomic import write_atomically
from megatape.utils.json_files import json_content, read_json
from megatape.utils.validation import first_fault

# Name of the figure for all validation samples. Names of the figures for parts of the data begin with it.
VALIDATION_LOSS = "validation loss"
# Beginning of the names of perplexities. The length in tokens follows.
PERPLEXITY = "perplexity at "


@dataclass(frozen=True)
class Result:
    """Base class of the measurements of a trained model.

    Attributes:
        config: Resolved configuration of the training.
        fingerprints: Hashes of the data and the tokenizer.
    """

    config: Config
    fingerprints: dict[str, str]

    @property
    def summary(self) -> str:
        """The measurements in one line."""
        raise NotImplementedError

    def write(self, path: Path) -> None:
        """Write the file atomically: if it exists, it is complete."""
        content = TypeAdapter(type(self)).dump_python(self, mode="json")
        write_atomically(path, json_content(content, str(path), indent=2) + b"\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that `write` wrote.

        Raises:
            UserError: The file is corrupted.
        """
        try:
            return TypeAdapter(cls).validate_json(json.dumps(read_json(path)))
        except ValidationError as error:
            fault = first_fault(error)
        except ValueError as error:
            fault = str(error)
        raise UserError(f"{path} is corrupted ({fault}): remove it and run the command again")


@dataclass(frozen=True)
class Outcome(Result):
    """Measurements of a model in a comparison of encodings or of methods.

    Attributes:
        scaling: Kind of model.scaling in the evaluation, or None.
        figures: Metrics by name. Each is a column of the table.
        losses: Mean training loss (nats) of equal parts of the run, by the last step of each part.
        curve: A metric by length in tokens or digits.
        axes: Names of the length and of the metric.
        selection: Selection of the validation text for loss and perplexity.
    """

    scaling: str | None
    figures: dict[str, float]
    losses: dict[int, float]
    curve: dict[int, float]
    axes: tuple[str, str]
    selection: Selection = EARLIER_SELECTION

    @property
    def seed(self) -> int:
        """training.seed of the run."""
        return self.config.training.seed

    @property
    def summary(self) -> str:
        """The metrics in one line."""
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in self.figures.items())
        if self.scaling is None:
            return metrics
        return f"{self.scaling}: {metrics}"
