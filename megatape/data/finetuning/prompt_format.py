"""Examples of a prompt and an answer, which are tokenized separately and cut to the limits."""

from abc import abstractmethod
from collections import Counter
from typing import Any, ClassVar

from megatape.data.finetuning.format import Example, Format, Limits, RecordDropped, Truncation
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import UserError


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
        tokenizer, counts = self.tokenizer, Counter[str]()
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
