"""Tokenizers of loaded models, which produce the same ids and texts as in training."""

from pathlib import Path
from typing import Any

from tokenizers.decoders import Decoder
from transformers import PreTrainedTokenizerFast

from megatape.data.tokenizers.byte_tokens import REPLACEMENT
from megatape.data.tokenizers.files import json_tokenizer
from megatape.data.tokenizers.huggingface import decoding_by
from megatape.data.tokenizers.tokenizer import JSON_FILE


class ExactTokenizer(PreTrainedTokenizerFast):  # type: ignore[misc]
    """Tokenizer that decodes valid characters next to a stray byte token correctly.

    Attributes:
        exact_decoder: Decoder for texts with replacement characters. None if the tokenizer's usual decoder is exact.
    """

    exact_decoder: Decoder | None = None

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> Any:
        """Decode token ids to a text, or a batch of token ids to texts. See PreTrainedTokenizerFast."""
        decoded = super().decode(token_ids, skip_special_tokens, **options)
        texts = decoded
        if isinstance(decoded, str):
            texts = [decoded]
        if self.exact_decoder is None or not any(REPLACEMENT in text for text in texts):
            return decoded
        with decoding_by(self.backend_tokenizer, self.exact_decoder):
            return super().decode(token_ids, skip_special_tokens, **options)


def read_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Load the tokenizer in a model folder. As in training, special tokens written in a text are ordinary text.

    Raises:
        FileNotFoundError, UserError: A file is missing or corrupted.
    """
    tokenizer = json_tokenizer(folder / JSON_FILE)
    begin = None
    if tokenizer.bos_id is not None:
        begin = tokenizer.piece(tokenizer.bos_id)
    max_length = tokenizer.declared.get("model_max_length")
    if type(max_length) is not int:
        max_length = None
    loaded = ExactTokenizer(
        tokenizer_object=tokenizer.backend,
        bos_token=begin,
        eos_token=tokenizer.piece(tokenizer.eos_id),
        unk_token=tokenizer.special_token("unk"),
        pad_token=tokenizer.special_token("pad"),
        add_bos_token=begin is not None,
        add_eos_token=False,
        padding_side="left",
        model_max_length=max_length,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )
    loaded.exact_decoder = tokenizer.exact_decoder
    return loaded
