"""A model's tokenizer as used in fine-tuning."""

from collections.abc import Iterable
from typing import Any

from megatape.data.tokenizers.tokenizer import Tokenizer


class PromptTokenizer(Tokenizer):
    """Adapts a tokenizer of transformers to the interface in data/. It has no files.

    Args:
        tokenizer: Tokenizer of transformers.
        name: Model name.
    """

    def __init__(self, tokenizer: Any, name: str) -> None:
        super().__init__({}, name)
        self._tokenizer = tokenizer
        self.vocab_size = len(tokenizer)
        self.eos_id = tokenizer.eos_token_id
        special_ids = tokenizer("")["input_ids"]
        self.bos_id = int(special_ids[0]) if special_ids else None

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Iterable[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def piece(self, token: int) -> str | None:
        return self._tokenizer.convert_ids_to_tokens(token)
