r"""Formats of fine-tuning: from a record, whose fields may have other names, to an example within limits.

`Format` is the interface. The other formats here have a prompt and an answer, which are tokenized separately and cut: `Pairs`
as they are, Alpaca's, and those of SCROLLS (arXiv 2201.03533), whose records have `input` and `output`, by the recipe of the
TAPE authors' code. With N = 8192 and Llama's tokenizer: questions are the first 7991 tokens of the input, `<s>`, up to 200
tokens of the answer and `</s>`; summaries are the first 7184 and the last 7 tokens of `Context:\n...\n Please summarize this
report:`, and up to 1000 tokens of the answer. What follows the prompt is learned, `<s>` too.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import RecordError, UserError, did_you_mean

Truncation = Literal["end", "middle"]


class RecordDropped(RecordError):
    """A record of the format that gives no example. The message is the reason, the same for all of its kind."""


@dataclass(frozen=True)
class Example:
    """One example.

    Attributes:
        ids: All tokens.
        answers: [begin, end) of each answer in them, its end token included; the last one ends the example.
        prompt: Text of the prompt, or its start: examples with the same are kept in one split.
        counts: Numbers of things that were cut, by their name in reports.
    """

    ids: list[int]
    answers: list[tuple[int, int]]
    prompt: str
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Limits:
    """Lengths of examples, in tokens. None: the format's own limit.

    Attributes:
        sequence_length: N: an example has at most N + 1, because its last token is only a target.
        max_prompt: Of the prompt.
        max_answer: Of the answer without its end token.
        truncation: Part that is cut from prompts that are too long.
    """

    sequence_length: int
    max_prompt: int | None = None
    max_answer: int | None = None
    truncation: Truncation | None = None

    @property
    def options(self) -> dict[str, int | Truncation]:
        """The limits that are set, by the command's option."""
        limits = {"max_prompt_tokens": self.max_prompt, "max_answer_tokens": self.max_answer, "truncation": self.truncation}
        return {"sequence_length": self.sequence_length} | {name: value for name, value in limits.items() if value is not None}


class Format(ABC):
    """From records to examples. To add one, write a subclass and its line in megatape/registry.py.

    Args:
        tokenizer: Of the model.
        limits: Of examples.

    Attributes:
        reads: Fields of records that it reads; empty: any.
        notes: For the user, about how examples are made.

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
        """The example of a record.

        Raises:
            RecordError: The record is not of the format.
            RecordDropped: The record gives no example.
        """


def text_of(record: dict[str, Any], name: str) -> str:
    """A field that must be text. Raises RecordError."""
    if name not in record:
        raise missing_field(name, record)
    if not isinstance(record[name], str):
        raise RecordError(f"{name!r} is {record[name]!r:.40}, not a string")
    return str(record[name])


def missing_field(name: str, value: Any, place: str = "") -> RecordError:
    """An error about a field that is not in a value, with the names that are. place: path of the value in the record."""
    if not isinstance(value, dict):
        found = f"a list of {len(value)}" if isinstance(value, list) else f"{value!r:.40}"
        return RecordError(f"{name!r} is missing; {place or 'the record'} is {found}")
    question = did_you_mean(name, map(str, value)).strip()
    nearest = f" ({question})" if question else ""
    names = ", ".join(map(repr, value)) or "no fields"
    return RecordError(f"{name!r} is missing; {place or 'the record'} has {names}{nearest}")


class FieldMapping:
    """Gives a format's fields the values of others.

    Args:
        texts: Such as "answer=answers.text.0": a field of the format, and the path to its value in a record by names of fields
            and places in lists.
        fields: The format's; empty: any.

    Raises:
        UserError: A text has another form, or the format has no such field.
    """

    def __init__(self, texts: Sequence[str], fields: Sequence[str] = ()) -> None:
        self._paths: dict[str, str] = {}
        for text in texts:
            name, _, path = text.partition("=")
            if not name or not path or name in self._paths:
                raise UserError(f"fields {text!r}: give each field of the format once, such as answer=response")
            if fields and name not in fields:
                raise UserError(f"fields {text!r}: {did_you_mean(name, fields)}the format reads {', '.join(fields)}")
            self._paths[name] = path

    def apply(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record with the format's fields. Raises RecordError naming the part of a path that is missing."""
        return record | {name: _value(record, path) for name, path in self._paths.items()}


def _value(record: dict[str, Any], path: str) -> Any:
    if path in record:  # a name may have dots
        return record[path]
    value: Any = record
    parts = path.split(".")
    for index, part in enumerate(parts):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise missing_field(part, value, ".".join(parts[:index]))
    return value


TASK = "Below is an instruction that describes a task"
REQUEST = "Write a response that appropriately completes the request."


class PromptFormat(Format):
    """An example is `<s> prompt`, then `separator answer </s>`, which is learned.

    The prompt's tokens are those that generation makes of the text (without `<s>` if the tokenizer has none), and the answer's
    are made without it.

    Answers are cut at their end to `max_answer`. Prompts are cut to `max_prompt` and to the room that the answer leaves, where
    truncation says; `middle` keeps the first and the last tokens, half of the room each, or as last ones those of
    `instruction`.
    """

    truncation: ClassVar[Truncation] = "middle"
    max_answer: ClassVar[int | None] = None
    instruction: ClassVar[str] = ""  # end of every prompt

    def __init__(self, tokenizer: Tokenizer, limits: Limits) -> None:
        super().__init__(tokenizer, limits)
        self._truncation = limits.truncation or self.truncation
        self._max_answer = limits.max_answer or self.max_answer
        self._separator = self.separator()
        self._kept_end = len(tokenizer.encode(self.instruction)) if self.instruction else 0
        self._least = len(tokenizer.begin) + max(1, self._kept_end)
        self._max_prompt = limits.max_prompt
        if self._max_prompt is not None and self._max_prompt < self._least:
            raise UserError(f"max_prompt_tokens is {self._max_prompt}: a prompt needs at least {self._least}")
        if self._max_answer is not None:
            left = limits.sequence_length - len(self._separator) - self._max_answer
            if left < self._least:
                raise UserError(
                    f"sequence_length {limits.sequence_length} leaves {max(left, 0)} tokens for prompts before answers of "
                    f"{self._max_answer}, and they need at least {self._least}: raise it, or lower `max_answer_tokens`"
                )
            if self.max_answer is not None and self._max_prompt is None:  # a recipe's: prompts leave room for any answer
                self._max_prompt = left

    def separator(self) -> list[int]:
        """Tokens between the prompt and the answer, which the model learns to write."""
        return []

    @abstractmethod
    def texts(self, record: dict[str, Any]) -> tuple[str, str]:
        """Prompt and answer of a record. Raises RecordError if it is not of the format."""

    def example(self, record: dict[str, Any]) -> Example:
        prompt, answer = self.texts(record)
        for name, text in (("prompt", prompt), ("answer", answer)):
            if not text or text.isspace():
                raise RecordDropped(f"empty {name}")
        tokenizer = self.tokenizer
        counts = Counter[str]()
        answer_ids = tokenizer.encode(answer)
        kept = answer_ids[: self._max_answer]
        end = [*self._separator, *kept, tokenizer.eos_id]
        room = self.limits.sequence_length + 1 - len(end)
        if self._max_prompt is not None:
            room = min(room, self._max_prompt)
        if room < self._least:
            raise RecordDropped("answer that leaves no room for a prompt")
        whole = self._whole(prompt)
        ids = self._cut(whole, room)
        for name, cut in (("prompts", len(whole) - len(ids)), ("answers", len(answer_ids) - len(kept))):
            if cut:
                counts += Counter({f"{name} cut": 1, f"tokens cut from {name}": cut})
        return Example(ids + end, [(len(ids), len(ids) + len(end))], prompt, counts)

    def _whole(self, prompt: str) -> list[int]:
        return [*self.tokenizer.begin, *self.tokenizer.encode(prompt)]

    def _cut(self, ids: list[int], room: int) -> list[int]:
        if len(ids) <= room:
            return ids
        tail = 0 if self._truncation == "end" else self._kept_end or room // 2
        return ids[: room - tail] + ids[len(ids) - tail :]


class Pairs(PromptFormat):
    """Prompt and answer are two texts, and nothing is put between them."""

    reads = ("prompt", "answer")

    def texts(self, record: dict[str, Any]) -> tuple[str, str]:
        return text_of(record, "prompt"), text_of(record, "answer")


class Alpaca(PromptFormat):
    """Examples with an instruction and an optional input as the prompt, and an output as the answer.

    Attributes:
        unsupported: Fields of LLaMA-Factory's records without a place in Stanford's prompt.
    """

    reads = ("instruction", "input", "output")
    unsupported: ClassVar[tuple[str, ...]] = ("system", "history")

    def texts(self, record: dict[str, Any]) -> tuple[str, str]:
        for name in self.unsupported:
            if record.get(name):
                raise RecordError(f"the record has `{name}`, which is not part of Alpaca's prompt: use the format chat for it")
        instruction = text_of(record, "instruction")
        output = text_of(record, "output")
        given = text_of(record, "input") if record.get("input") is not None else ""
        if not instruction.strip():
            return "", output
        task = f"{TASK}. {REQUEST}"
        more = ""
        if given.strip():
            task = f"{TASK}, paired with an input that provides further context. {REQUEST}"
            more = f"### Input:\n{given}\n\n"
        return f"{task}\n\n### Instruction:\n{instruction}\n\n{more}### Response:\n", output


MAX_WORDS = 20_000  # of an input, before it is tokenized: books have ten times as many


class Scrolls(PromptFormat):
    """Prompts of both kinds of task."""

    reads = ("input", "output")

    def separator(self) -> list[int]:
        return self.tokenizer.begin or self.tokenizer.encode("\n")

    def texts(self, record: dict[str, Any]) -> tuple[str, str]:
        text = text_of(record, "input")
        answer = text_of(record, "output")
        return self.prompt(text) if text.strip() else "", answer

    def prompt(self, text: str) -> str:
        """The prompt with an input."""
        return first_words(text, MAX_WORDS)

    def question(self, text: str) -> list[int]:
        """The prompt that evaluation gives for an input: the tokens of training up to the separator."""
        assert self._max_prompt is not None  # so the prompts of training do not depend on their answers either
        return self._cut(self._whole(self.prompt(text)), self._max_prompt)

    @property
    def answer_tokens(self) -> int:
        """The most tokens of an answer with its separator, without the end token."""
        assert self._max_answer is not None
        return len(self._separator) + self._max_answer


class Answering(Scrolls):
    """Questions: the input begins with one, and its end is cut."""

    max_answer: ClassVar[int | None] = 200
    truncation: ClassVar[Truncation] = "end"


class Summarizing(Scrolls):
    """Summaries: the prompt ends with the instruction, so its middle is cut."""

    max_answer: ClassVar[int | None] = 1000
    instruction: ClassVar[str] = "\n Please summarize this report:"

    def prompt(self, text: str) -> str:
        return f"Context:\n{super().prompt(text)}{self.instruction}"


def first_words(text: str, count: int) -> str:
    """The text up to the end of its word number `count`, spaces as they are."""
    parts = text.split(None, count)
    return text if len(parts) <= count else text[: len(text) - len(parts[-1])].rstrip()
