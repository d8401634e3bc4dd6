"""The results of one run of a comparison, and their file."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from megatape.config import Config
from megatape.errors import UserError
from megatape.files import as_type, read_json, write_atomically


@dataclass(frozen=True)
class Outcome:
    """Results of a trained model.

    config        resolved configuration of the training
    fingerprints  hashes of its data and tokenizer
    scaling       kind of model.scaling used in the evaluation, or None
    figures       metrics by name, the columns of the table
    losses        mean training loss (nats) of equal parts of the run, keyed by the last step of each
    curve, axes   a metric by length in tokens or digits, and the names of length and metric
    """

    config: Config
    fingerprints: dict[str, str]
    scaling: str | None
    figures: dict[str, float]
    losses: dict[int, float]
    curve: dict[int, float]
    axes: tuple[str, str]

    @property
    def seed(self) -> int:
        """training.seed of the run."""
        return self.config.training.seed

    @property
    def summary(self) -> str:
        """The metrics in one line."""
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in self.figures.items())
        return f"{self.scaling}: {metrics}" if self.scaling else metrics

    def write(self, path: Path) -> None:
        """Write the file atomically: if it exists, it is complete."""
        content = asdict(self) | {"config": self.config.model_dump()}
        write_atomically(path, f"{json.dumps(content, indent=2)}\n".encode())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `write` wrote. Raises UserError if the file is corrupted."""
        try:
            return as_type(read_json(path), cls)
        except ValueError as error:
            raise UserError(f"{path} is corrupted ({error}): remove it and run the command again") from None
