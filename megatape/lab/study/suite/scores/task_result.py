"""Scores of a trained model: scores.json in the folder of its run."""

from dataclasses import dataclass

from megatape.lab.study.execution.result import Result
from megatape.lab.study.suite.scores.record import Record

# File of the scores in a run's folder.
SCORES = "scores.json"


@dataclass(frozen=True)
class Scores(Result):
    """Measurements of a model, in the file SCORES of its run's folder.

    Attributes:
        definition: Hash of the task's definition.
        validation_loss: Loss in nats after the last step.
        seconds: Seconds of training steps and scoring, without process startup.
        records: Records of the splits that the model was scored on.
    """

    definition: str
    validation_loss: float
    seconds: float
    records: list[Record]

    @property
    def summary(self) -> str:
        """The scores in one line."""
        parts = [f"validation loss {self.validation_loss:.4f}"]
        for record in self.records:
            score = "not applicable"
            if record.score is not None:
                score = f"{record.score:.3f}"
            parts.append(f"{record.split} {score}")
        return ", ".join(parts)
