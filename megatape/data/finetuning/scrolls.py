r"""Formats for SCROLLS (arXiv 2201.03533), following the recipe in the TAPE authors' code. Records have `input` and `output`.

With N = 8192 and Llama's tokenizer, a question example is the first 7991 tokens of the input, `<s>`, up to 200 answer tokens
and `</s>`. A summary example is the first 7184 and the last 7 tokens of `Context:\n...\n Please summarize this report:`, and
up to 1000 answer tokens. Everything after the prompt is learned, including `<s>`.
"""

from typing import Any, ClassVar

from megatape.data.finetuning.fields import text_of
from megatape.data.finetuning.format import Truncation
from megatape.data.finetuning.prompt_format import PromptFormat

# Inputs are cut to this many words before tokenizing them, because books have ten times as many.
MAX_WORDS = 20_000


class Scrolls(PromptFormat):
    """Base class of both kinds of task."""

    reads = ("input", "output")

    def separator(self) -> list[int]:
        return self.tokenizer.begin or self.tokenizer.encode("\n")

    def texts(self, record: dict[str, Any]) -> tuple[str, str]:
        text = text_of(record, "input")
        answer = text_of(record, "output")
        if not text.strip():
            return "", answer
        return self.prompt(text), answer

    def prompt(self, text: str) -> str:
        """Return the prompt for an input."""
        return first_words(text, MAX_WORDS)

    def question(self, text: str) -> list[int]:
        """Return the prompt tokens for evaluating an input: those in training, up to the separator."""
        # Prompts in training do not depend on their answers either.
        assert self._max_prompt is not None
        return self._cut(self._prompt_ids(self.prompt(text)), self._max_prompt)

    @property
    def answer_tokens(self) -> int:
        """Maximum number of answer tokens, including the separator but not the end token."""
        assert self._max_answer is not None
        return len(self._separator) + self._max_answer


class Answering(Scrolls):
    """Questions. The input begins with one, so its end is cut."""

    max_answer: ClassVar[int | None] = 200
    truncation: ClassVar[Truncation] = "end"


class Summarizing(Scrolls):
    """Summaries. The prompt ends with the instruction, so its middle is cut."""

    max_answer: ClassVar[int | None] = 1000
    instruction: ClassVar[str] = "\n Please summarize this report:"

    def prompt(self, text: str) -> str:
        return f"Context:\n{super().prompt(text)}{self.instruction}"


def first_words(text: str, count: int) -> str:
    """Return the first `count` words of a text, keeping its white space."""
    parts = text.split(None, count)
    if len(parts) <= count:
        return text
    return text[: len(text) - len(parts[-1])].rstrip()
