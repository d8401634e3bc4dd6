r"""SCROLLS (arXiv 2201.03533), whose records have `input` and `output`, by the recipe of the TAPE authors' code.

With N = 8192 and Llama's tokenizer: questions are the first 7991 tokens of the input, `<s>`, up to 200 tokens of the answer and
`</s>`; summaries are the first 7184 and the last 7 tokens of `Context:\n...\n Please summarize this report:`, and up to 1000
tokens of the answer. What follows the prompt is learned, `<s>` too.
"""

from typing import Any, ClassVar

from megatape.data.finetuning.format import Truncation, text_of
from megatape.data.finetuning.prompt_format import PromptFormat

MAX_WORDS = 20_000  # of an input, before it is tokenized: books have ten times as many


class Scrolls(PromptFormat):
    """Prompts of both kinds of task."""

    def separator(self) -> list[int]:
        return self.tokenizer.begin or self.tokenizer.encode("\n")

    def texts(self, record: dict[str, Any]) -> tuple[str, str]:
        text, answer = text_of(record, "input"), text_of(record, "output")
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
