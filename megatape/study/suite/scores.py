"""What is measured of one model of a suite, for scores.json in the run's folder."""

from dataclasses import dataclass

from megatape.study.result import Result
from megatape.study.suite.records import Record

SCORES = "scores.json"


@dataclass(frozen=True)
class Scores(Result):
    """The scores of a trained model.

    Attributes:
        definition: Hash of the task's definition.
        validation_loss: Loss in nats after the last step.
        seconds: Time of its steps and its scoring, without the start of processes.
        records: One of each split it was scored on.
    """

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
