"""What is measured of one model of a suite, and its file in the run's folder."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from megatape.config import Config
from megatape.errors import UserError
from megatape.files import as_type, read_json, write_atomically
from megatape.run_folder import RunFolder
from megatape.study.suite.records import Record

SCORES = "scores.json"


@dataclass(frozen=True)
class Scores:
    """The scores of a trained model.

    config, fingerprints  of the training, as Outcome has them
    definition            hash of the task's definition
    validation_loss       in nats, after the last step
    seconds               that its steps and its scoring took, without the start of processes
    records               of each split it was scored on
    """

    config: Config
    fingerprints: dict[str, str]
    definition: str
    validation_loss: float
    seconds: float
    records: list[Record]

    @property
    def summary(self) -> str:
        """The scores in one line."""
        shown = (
            f"{record.split} {'not applicable' if record.score is None else f'{record.score:.3f}'}" for record in self.records
        )
        return ", ".join([f"validation loss {self.validation_loss:.4f}", *shown])

    def write(self, folder: RunFolder) -> None:
        """Write the file: if it exists, it is complete."""
        content = asdict(self) | {
            "config": self.config.model_dump(),
            "records": [record.model_dump() for record in self.records],
        }
        write_atomically(folder.directory / SCORES, (json.dumps(content, indent=1) + "\n").encode())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `write` wrote. Raises UserError if the file is corrupted."""
        try:
            content = read_json(path)
            content["records"] = [Record.model_validate_json(json.dumps(record)) for record in content["records"]]
            return as_type(content, cls)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{path} is corrupted ({error}): remove it and run the command again") from None
