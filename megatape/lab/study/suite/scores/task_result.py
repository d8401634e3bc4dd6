"""Result of a suite run: scores.json in its run directory."""

from dataclasses import dataclass

from megatape.lab.study.results.result import Result
from megatape.lab.study.suite.scores.record import Record

# Result file in a run directory.
SCORES = "scores.json"


@dataclass(frozen=True)
class TaskResult(Result):
    """Scores of a model on its task.

    Attributes:
        definition: Hash of the task definition.
        validation_loss: Loss in nats after the last step.
        seconds: Seconds of training steps and scoring, without process startup.
        records: Records, one for each scored split.
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
