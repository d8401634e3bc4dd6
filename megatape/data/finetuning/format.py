"""Interface of fine-tuning formats, which convert records to examples within limits."""

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import RecordError

Truncation = Literal["end", "middle"]


class RecordDropped(RecordError):
    """A valid record gives no example. The message is the reason, identical for all records dropped for it."""


@dataclass(frozen=True)
class Example:
    """A tokenized example.

    Attributes:
        ids: All tokens.
        answers: [begin, end) of each answer in `ids`, including its end token. The last answer ends the example.
        prompt: Prompt text, or its beginning. Examples with the same prompt go to the same split.
        counts: Counts of the parts cut, by name in reports.
    """

    ids: list[int]
    answers: list[tuple[int, int]]
    prompt: str
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Limits:
    """Limits on example length, in tokens. None: the format's default.

    Attributes:
        sequence_length: N. An example has at most N + 1 tokens, because its last token is only a target.
        max_prompt: Maximum prompt length.
        max_answer: Maximum answer length without the end token.
        truncation: Part of a long prompt to cut.
    """

    sequence_length: int
    max_prompt: int | None = None
    max_answer: int | None = None
    truncation: Truncation | None = None

    @property
    def options(self) -> dict[str, int | Truncation]:
        """Limits that are set, by command option."""
        options: dict[str, int | Truncation] = {"sequence_length": self.sequence_length}
        if self.max_prompt is not None:
            options["max_prompt_tokens"] = self.max_prompt
        if self.max_answer is not None:
            options["max_answer_tokens"] = self.max_answer
        if self.truncation is not None:
            options["truncation"] = self.truncation
        return options


class Format(ABC):
    """Converts records to examples. To add a format, write a subclass and its line in megatape/registry.py.

    Args:
        tokenizer: Tokenizer of the model to fine-tune.
        limits: Limits on example length.

    Attributes:
        reads: Names of the fields being read; empty: any.
        notes: Notes for the user about the examples.

    Raises:
        UserError: Tokenizer, limits and format do not fit together.
    """

    reads: tuple[str, ...] = ()

    def __init__(self, tokenizer: Tokenizer, limits: Limits) -> None:
        self.tokenizer = tokenizer
        self.limits = limits
        self.notes: list[str] = []

    @abstractmethod
    def example(self, record: dict[str, Any]) -> Example:
        """Convert a record to an example.

        Raises:
            RecordError: The record does not have this format.
            RecordDropped: The record gives no example.
        """
