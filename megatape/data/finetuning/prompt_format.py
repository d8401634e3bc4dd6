"""Formats with a prompt and an answer, tokenizing and cutting them separately."""

from abc import abstractmethod
from collections import Counter
from typing import Any, ClassVar

from megatape.data.finetuning.fields import text_of
from megatape.data.finetuning.format import Example, Format, Limits, RecordDropped, Truncation
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import RecordError, UserError, flag

# Parts of Alpaca's prompts.
TASK = "Below is an instruction that describes a task"
REQUEST = "Write a response that appropriately completes the request."


class PromptFormat(Format):
    """Base class of these formats. An example is `<s> prompt`, then `separator answer </s>`, which is learned.

    The prompt has the same tokens as when generating (without `<s>` if the tokenizer has none). The answer is tokenized
    separately.

    Answers are cut to `max_answer` at the end. Prompts are cut to `max_prompt` and to the room left by the answer. `truncation`
    decides which part: `middle` keeps the first and the last tokens, half of the room each; with an `instruction`, the last
    tokens are those of the instruction.

    Attributes:
        truncation: Part of a long prompt to cut.
        max_answer: Maximum answer length without the end token.
        instruction: Text at the end of every prompt.
    """

    truncation: ClassVar[Truncation] = "middle"
    max_answer: ClassVar[int | None] = None
    instruction: ClassVar[str] = ""

    def __init__(self, tokenizer: Tokenizer, limits: Limits) -> None:
        super().__init__(tokenizer, limits)
        self._truncation = limits.truncation or self.truncation
        self._max_answer = limits.max_answer or self.max_answer
        self._separator = self.separator()
        self._instruction_tokens = 0
        if self.instruction:
            self._instruction_tokens = len(tokenizer.encode(self.instruction))
        self._min_prompt = len(tokenizer.begin) + max(1, self._instruction_tokens)
        self._max_prompt = limits.max_prompt
        if self._max_prompt is not None and self._max_prompt < self._min_prompt:
            raise UserError(f"{flag('max_prompt_tokens')} is {self._max_prompt}: a prompt needs at least {self._min_prompt}")
        if self._max_answer is None:
            return
        room = limits.sequence_length - len(self._separator) - self._max_answer
        if room < self._min_prompt:
            raise UserError(
                f"{flag('sequence_length')} {limits.sequence_length} leaves {max(room, 0)} tokens for prompts before answers "
                f"of {self._max_answer}, and they need at least {self._min_prompt}: raise it, or lower "
                f"{flag('max_answer_tokens')}"
            )
        if self.max_answer is not None and self._max_prompt is None:
            # In a recipe limiting answers, prompts leave room for the longest one.
            self._max_prompt = room

    def separator(self) -> list[int]:
        """Return the tokens between prompt and answer. They are learned."""
        return []

    @abstractmethod
    def texts(self, record: dict[str, Any]) -> tuple[str, str]:
        """Return a record's prompt and answer. Raises RecordError if it does not have this format."""

    def example(self, record: dict[str, Any]) -> Example:
        prompt, answer = self.texts(record)
        for name, text in (("prompt", prompt), ("answer", answer)):
            if not text or text.isspace():
                raise RecordDropped(f"empty {name}")
        answer_ids = self.tokenizer.encode(answer)
        cut_answer = answer_ids[: self._max_answer]
        end = [*self._separator, *cut_answer, self.tokenizer.eos_id]
        room = self.limits.sequence_length + 1 - len(end)
        if self._max_prompt is not None:
            room = min(room, self._max_prompt)
        if room < self._min_prompt:
            raise RecordDropped("answer that leaves no room for a prompt")
        prompt_ids = self._prompt_ids(prompt)
        cut_prompt = self._cut(prompt_ids, room)

        counts = Counter[str]()
        num_cut = {"prompts": len(prompt_ids) - len(cut_prompt), "answers": len(answer_ids) - len(cut_answer)}
        for name, number in num_cut.items():
            if number:
                counts[f"{name} cut"] = 1
                counts[f"tokens cut from {name}"] = number
        ids = cut_prompt + end
        return Example(ids, [(len(cut_prompt), len(ids))], prompt, counts)

    def _prompt_ids(self, prompt: str) -> list[int]:
        return [*self.tokenizer.begin, *self.tokenizer.encode(prompt)]

    def _cut(self, ids: list[int], room: int) -> list[int]:
        if len(ids) <= room:
            return ids
        num_last = 0
        if self._truncation == "middle":
            num_last = self._instruction_tokens or room // 2
        return ids[: room - num_last] + ids[len(ids) - num_last :]


class Pairs(PromptFormat):
    """Prompt and answer are two texts, with nothing in between."""

    reads = ("prompt", "answer")

    def texts(self, record: dict[str, Any]) -> tuple[str, str]:
        return text_of(record, "prompt"), text_of(record, "answer")


class Alpaca(PromptFormat):
    """The prompt is an instruction with an optional input, the answer an output.

    Attributes:
        unsupported: Fields of LLaMA-Factory's records that do not occur in Stanford's prompt.
    """

    reads = ("instruction", "input", "output")
    unsupported: ClassVar[tuple[str, ...]] = ("system", "history")

    def texts(self, record: dict[str, Any]) -> tuple[str, str]:
        for name in self.unsupported:
            if record.get(name):
                raise RecordError(f"the record has `{name}`, which is not part of Alpaca's prompt: use the format chat for it")
        instruction = text_of(record, "instruction")
        output = text_of(record, "output")
        text = ""
        if record.get("input") is not None:
            text = text_of(record, "input")
        if not instruction.strip():
            return "", output
        task = f"{TASK}. {REQUEST}"
        input_section = ""
        if text.strip():
            task = f"{TASK}, paired with an input that provides further context. {REQUEST}"
            input_section = f"### Input:\n{text}\n\n"
        return f"{task}\n\n### Instruction:\n{instruction}\n\n{input_section}### Response:\n", output
