"""Records: lines of results.jsonl."""

from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from megatape.errors import UserError
from megatape.lab.study.suite.scores.answers import AnswerCounts, KeyCounts


class Identity(NamedTuple):
    """Identity of a record, unique in a file and its sort key. The seed is -1 for a baseline without one."""

    task: str
    split: str
    kind: str
    contender: str
    seed: int


class ScoredSplit(BaseModel):
    """A model, and the split to score it on.

    Attributes:
        task: Task name.
        split: Split name.
        contender: Encoding label or baseline name, "row" in files.
        kind: Kind of contender.
        seed: training.seed, None for a baseline without one.
        learning_rate: Learning rate in training, None for a baseline.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, populate_by_name=True)

    task: Annotated[str, Field(min_length=1)]
    split: Annotated[str, Field(min_length=1)]
    contender: Annotated[str, Field(min_length=1, alias="row")]
    kind: Literal["encoding", "baseline"]
    seed: int | None
    learning_rate: PositiveFloat | None

    def scored(self, counts: AnswerCounts) -> "Record":
        """Return the record with a score."""
        return Record(**dict(self), score=counts.score, reason=None, asked=counts.asked, curve=counts.by_key)

    def not_scored(self, reason: str) -> "Record":
        """Return the record without a score, because the model does not support the split."""
        return Record(**dict(self), score=None, reason=reason, asked=0, curve=())


class Record(ScoredSplit):
    """A model's score on one split.

    Attributes:
        score: Share of right answers or samples, 0 to 1. None if the encoding does not support the split.
        reason: Reason why there is no score, or None.
        asked: Number of answers or samples.
        curve: Key (a length or distance), right answers and asked answers, for each key.
    """

    score: Annotated[float, Field(ge=0, le=1)] | None
    reason: Annotated[str, Field(min_length=1)] | None
    asked: NonNegativeInt
    curve: tuple[tuple[int, NonNegativeInt, PositiveInt], ...]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kind == "encoding" and self.seed is None:
            raise UserError(f"an encoding has a seed; this is one of {self.contender}")
        if (self.score is None) == (self.reason is None):
            raise UserError(f"a record has a score or a reason; here they are {self.score} and {self.reason}")
        return self

    @property
    def counts(self) -> AnswerCounts:
        """Answers by key."""
        return AnswerCounts(tuple(KeyCounts(*entry) for entry in self.curve))

    @property
    def identity(self) -> Identity:
        """Subject of the record, without its score."""
        seed = self.seed
        if seed is None:
            seed = -1
        return Identity(self.task, self.split, self.kind, self.contender, seed)
