"""The scores of a suite, and their files: scores.json of each run, and a line of results.jsonl for each model and split."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError, model_validator

from megatape.data.synthetic.task import SyntheticSample, SyntheticTask
from megatape.errors import UserError
from megatape.lab.study.outcome import Result
from megatape.utils.files import first_fault, read_regular, write_atomically


class Score(NamedTuple):
    """Score of a model on one split.

    Attributes:
        score: Share of right answers.
        asked: Number of answers.
        curve: (key, right, asked) by the answers' key.
    """

    score: float
    asked: int
    curve: tuple[tuple[int, int, int], ...]


def answer_places(task: SyntheticTask, sample: SyntheticSample) -> list[range]:
    """For each answer, the places in the text of its tokens. The end token's place is the text's length."""
    places = [range(answer.begin, answer.end) for answer in sample.answers]
    if task.answers_end:
        places[-1] = range(places[-1].start, places[-1].stop + 1)
    return places


def score_answers(task: SyntheticTask, samples: Sequence[SyntheticSample], predicted: Sequence[Sequence[bool]]) -> Score:
    """The score of one split. predicted: for each sample, whether each token of its answers was, in order.

    A sample that counts as a whole has the key of its last answer.
    """
    right = Counter[int]()
    asked = Counter[int]()
    for sample, tokens in zip(samples, predicted, strict=True):
        lengths = [len(places) for places in answer_places(task, sample)]
        assert len(tokens) == sum(lengths), f"{len(tokens)} tokens for answers of {lengths}"
        following = iter(tokens)
        answers = [all(list(islice(following, length))) for length in lengths]
        keys = [answer.key for answer in sample.answers]
        if task.scored == "samples":
            answers = [all(answers)]
            keys = keys[-1:]
        for key, answer in zip(keys, answers, strict=True):
            right[key] += answer
            asked[key] += 1
    curve = tuple((key, right[key], asked[key]) for key in sorted(asked))
    return Score(right.total() / asked.total(), asked.total(), curve)


SCORES = "scores.json"


class Record(BaseModel):
    """The score of one model on one split of a task.

    Attributes:
        task: Name of the task.
        split: Name of the split.
        row: Encoding's label, or name of a baseline.
        kind: Kind of row.
        seed: training.seed of the run; None for a baseline without one.
        learning_rate: Learning rate of the run; None for a baseline without one.
        score: Share of right answers, or of examples whose answers are all right, as the task says, 0 to 1; None where the
            encoding can't do the split.
        reason: Reason why there is no score; None where there is one.
        asked: Number of answers or examples that the score is a share of.
        curve: (length or distance, right, asked), by length or distance.
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
    def of(cls, found: Score | str, **place: Any) -> Self:
        """The record of a score, or of the reason why there is none. place: the other fields."""
        if isinstance(found, str):
            return cls(score=None, reason=found, asked=0, curve=(), **place)
        return cls(reason=None, **found._asdict(), **place)

    @property
    def model(self) -> tuple[str, str, str, str, int]:
        """What only one record of a file may have, and their order."""
        return self.task, self.split, self.kind, self.row, -1 if self.seed is None else self.seed


@dataclass(frozen=True)
class Scores(Result):
    """What is measured of one model, for SCORES in its run's folder.

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


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Replace the file, sorted by task, split, row and seed."""
    lines = [record.model_dump_json() for record in sorted(records, key=lambda record: record.model)]
    write_atomically(path, "".join(f"{line}\n" for line in lines).encode())


def read_records(path: Path) -> list[Record]:
    """Read what `write_records` wrote. Raises OSError, or UserError with the line if the file is corrupted."""
    found: dict[tuple, Record] = {}
    for number, line in enumerate(read_regular(path).splitlines(), start=1):
        place = f"{path}, line {number}"
        try:
            record = Record.model_validate_json(line)
        except ValidationError as error:
            raise UserError(f"{place} is corrupted ({first_fault(error)}): remove the file and run the command again") from None
        if record.model in found:
            raise UserError(f"{place} repeats {record.task}, {record.split}, {record.row}, seed {record.seed}: remove one")
        found[record.model] = record
    return list(found.values())
