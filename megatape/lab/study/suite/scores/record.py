"""Record of a score: a line of results.jsonl."""

from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from megatape.errors import UserError
from megatape.lab.study.suite.scores.answers import Score


class ScoredSplit(NamedTuple):
    """A model and a split of its task.

    Attributes:
        task: Name of the task.
        split: Name of the split.
        row: Label of the encoding, or name of the baseline.
        kind: Kind of row.
        seed: training.seed of the run, None for a baseline.
        learning_rate: Learning rate of the run, None for a baseline.
    """

    task: str
    split: str
    row: str
    kind: Literal["encoding", "baseline"]
    seed: int | None = None
    learning_rate: float | None = None


class Record(BaseModel):
    """Score of a model on a split of a task.

    Attributes:
        task: Name of the task.
        split: Name of the split.
        row: Label of the encoding, or name of the baseline.
        kind: Kind of row.
        seed: training.seed of the run, None for a baseline without a seed.
        learning_rate: Learning rate of the run, None for a baseline.
        score: Share of right answers or samples, 0 to 1. None if the encoding does not support the split.
        reason: Reason why there is no score, or None.
        asked: Number of answers or samples.
        curve: Length or distance, right answers and number of answers, by length or distance.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    task: Annotated[str, Field(min_length=1)]
    split: Annotated[str, Field(min_length=1)]
    row: Annotated[str, Field(min_length=1)]
    kind: Literal["encoding", "baseline"]
    seed: int | None
    learning_rate: PositiveFloat | None
    score: Annotated[float, Field(ge=0, le=1)] | None
    reason: Annotated[str, Field(min_length=1)] | None
    asked: NonNegativeInt
    curve: tuple[tuple[int, NonNegativeInt, PositiveInt], ...]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kind == "encoding" and self.seed is None:
            raise UserError(f"an encoding has a seed; this is one of {self.row}")
        if (self.score is None) == (self.reason is None):
            raise UserError(f"a record has a score or a reason; here they are {self.score} and {self.reason}")
        return self

    @classmethod
    def of(cls, scored: ScoredSplit, found: Score | str) -> Self:
        """Return the record of a score.

        Args:
            scored: Model and split.
            found: The score, or the reason why there is none.
        """
        fields = scored._asdict()
        if isinstance(found, str):
            return cls(score=None, reason=found, asked=0, curve=(), **fields)
        return cls(reason=None, **found._asdict(), **fields)

    @property
    def model(self) -> tuple[str, str, str, str, int]:
        """Identity of the model and the split. It is unique in a file, whose records are in its order."""
        seed = self.seed
        if seed is None:
            seed = -1
        return self.task, self.split, self.kind, self.row, seed
