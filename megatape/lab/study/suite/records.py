"""Scores of a suite, and their files: scores.json of each run, and results.jsonl with a line for each model and split."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError, model_validator

from megatape.data.synthetic.task import SyntheticSample, SyntheticTask
from megatape.errors import UserError
from megatape.lab.study.engine.outcome import Result
from megatape.utils.atomic import write_atomically
from megatape.utils.files import read_regular
from megatape.utils.validation import first_fault

# File of the scores in a run's folder.
SCORES = "scores.json"


class Score(NamedTuple):
    """Score of a model on one split.

    Attributes:
        score: Share of right answers.
        asked: Number of answers.
        curve: Key, right answers and number of answers, by the answers' key.
    """

    score: float
    asked: int
    curve: tuple[tuple[int, int, int], ...]


def answer_places(task: SyntheticTask, sample: SyntheticSample) -> list[range]:
    """Return the places in the text of each answer's tokens. The place of the end token is the text's length."""
    places = [range(answer.begin, answer.end) for answer in sample.answers]
    if task.answers_end:
        last = places[-1]
        places[-1] = range(last.start, last.stop + 1)
    return places


def token_places(task: SyntheticTask, sample: SyntheticSample) -> list[int]:
    """Return the places in the text of the tokens of all answers, in order."""
    return list(chain.from_iterable(answer_places(task, sample)))


def score_answers(task: SyntheticTask, samples: Sequence[SyntheticSample], predicted: Sequence[Sequence[bool]]) -> Score:
    """Return the score of a split.

    An answer is right if all of its tokens are. In a task that scores samples, a sample is right if all of its answers are, and
    it has the key of its last answer.

    Args:
        task: The task.
        samples: Samples of the split.
        predicted: For each sample, whether each token of its answers was predicted, in order.
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
    def of(cls, found: Score | str, **place: Any) -> Self:
        """Return the record of a score.

        Args:
            found: The score, or the reason why there is none.
            place: The other fields.
        """
        if isinstance(found, str):
            return cls(score=None, reason=found, asked=0, curve=(), **place)
        return cls(reason=None, **found._asdict(), **place)

    @property
    def model(self) -> tuple[str, str, str, str, int]:
        """Identity of the model and the split. It is unique in a file, whose records are in its order."""
        seed = self.seed
        if seed is None:
            seed = -1
        return self.task, self.split, self.kind, self.row, seed


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


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Replace the file. Its lines are sorted by task, split, row and seed."""
    ordered = sorted(records, key=lambda record: record.model)
    text = "".join(f"{record.model_dump_json()}\n" for record in ordered)
    write_atomically(path, text.encode())


def read_records(path: Path) -> list[Record]:
    """Read a file that `write_records` wrote.

    Raises:
        UserError: The file is corrupted. The message has the number of the line.
        OSError: The file cannot be read.
    """
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
