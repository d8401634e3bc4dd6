"""What a format of fine-tuning data is, how long its examples may be, and what it makes of a record."""

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import RecordError, UserError

Truncation = Literal["end", "middle"]


class RecordDropped(RecordError):
    """A record that is as the format has it, but gives no example. The message is the reason, the same for all of its kind."""


@dataclass(frozen=True)
class Example:
    """One example.

    ids      all tokens
    answers  [begin, end) of each answer in them, its end token included; the last one ends the example
    prompt   text of the prompt, or its start: examples with the same are kept in one split
    counts   what was cut, by what a person reads
    """

    ids: list[int]
    answers: list[tuple[int, int]]
    prompt: str
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Limits:
    """How long examples may be, in tokens.

    sequence_length  N: an example has at most N + 1, because its last token is only a target
    max_prompt       of the prompt; None: as the format has it
    max_answer       of the answer without its end token; None: as the format has it
    truncation       what prompts lose that are too long: their end, or their middle; None: as the format has it

    Raises UserError for lengths below 1.
    """

    sequence_length: int
    max_prompt: int | None = None
    max_answer: int | None = None
    truncation: Truncation | None = None

    def __post_init__(self) -> None:
        for option, value in (
            ("sequence_length", self.sequence_length),
            ("max_prompt_tokens", self.max_prompt),
            ("max_answer_tokens", self.max_answer),
        ):
            if value is not None and value < 1:
                raise UserError(f"{option} is {value}: give at least 1")


class Format(ABC):
    """From records to examples. To add one, write a subclass and its line in megatape/registry.py.

    tokenizer: that of the model. Raises UserError if tokenizer, limits and format do not fit together.
    Attributes: notes, what a user should know about how examples are made.
    """

    def __init__(self, tokenizer: Tokenizer, limits: Limits) -> None:
        self.tokenizer, self.limits = tokenizer, limits
        self.notes: list[str] = []

    @abstractmethod
    def example(self, record: dict[str, Any]) -> Example:
        """The example of a record.

        Raises:
            RecordError: The record is not of the format.
            RecordDropped: The record gives no example.
        """


def text_of(record: dict[str, Any], name: str) -> str:
    """A field that must be text. Raises RecordError."""
    if name not in record:
        raise RecordError(f"{name!r} is missing; the record has {', '.join(map(repr, record)) or 'no fields'}")
    if not isinstance(record[name], str):
        raise RecordError(f"{name!r} is {record[name]!r:.40}, not a string")
    return str(record[name])
