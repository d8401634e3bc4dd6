"""Prompts and answers as they are: `{"prompt": "...", "answer": "..."}`."""

from typing import Any

from megatape.data.finetuning.format import text_of
from megatape.data.finetuning.prompt_format import PromptFormat


class Pairs(PromptFormat):
    """Prompt and answer are two texts, and nothing is put between them."""

    def texts(self, record: dict[str, Any]) -> tuple[str, str]:
        return text_of(record, "prompt"), text_of(record, "answer")
