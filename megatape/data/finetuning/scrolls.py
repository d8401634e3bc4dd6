r"""Formats of SCROLLS (arXiv 2201.03533), whose records have `input` and `output`, by the recipe of the TAPE authors' code.

With N = 8192 and Llama's tokenizer, an example of questions is the first 7991 tokens of the input, `<s>`, up to 200 tokens of
the answer and `</s>`. An example of summaries is the first 7184 and the last 7 tokens of `Context:\n...\n Please summarize this
report:`, and up to 1000 tokens of the answer. Everything after the prompt is learned, including `<s>`.
"""

from typing import Any, ClassVar

from megatape.data.finetuning.fields import text_of
from megatape.data.finetuning.format import Truncation
from megatape.data.finetuning.prompt_format import PromptFormat

# Maximum number of words of an input, before it is tokenized: books have ten times as many.
MAX_WORDS = 20_000


class Scrolls(PromptFormat):
    """Common base of both kinds of task."""

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
        """Return the prompt of evaluation for an input: the tokens of training up to the separator."""
        # Prompts of training do not depend on their answers either.
        assert self._max_prompt is not None
        return self._cut(self._prompt_ids(self.prompt(text)), self._max_prompt)

    @property
    def answer_tokens(self) -> int:
        """Maximum number of tokens of an answer with its separator, without the end token."""
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
    """Return the text up to the end of its word number `count`, with its white space."""
    parts = text.split(None, count)
    if len(parts) <= count:
        return text
    return text[: len(text) - len(parts[-1])].rstrip()
