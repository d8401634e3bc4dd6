"""The tokenizer of a model of transformers, for the prompts of megatape/data/finetuning."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from megatape.data.tokenizers.tokenizer import Tokenizer


class PromptTokenizer(Tokenizer):
    """A tokenizer of transformers as one of ours; it has no files. name: of the model."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        super().__init__({}, name)
        self._tokenizer = tokenizer
        self.vocab_size = len(tokenizer)
        self.eos_id = tokenizer.eos_token_id
        front = tokenizer("")["input_ids"]
        self.bos_id = int(front[0]) if front else None

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def encode_documents(self, texts: list[str]) -> list[np.ndarray]:
        return [np.array([*self.begin, *self.encode(text), self.eos_id], np.int32) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text
