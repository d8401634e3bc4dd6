"""A loaded model: computes logits and continues prompts."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatape.data.tokenizers.files import json_tokenizer
from megatape.data.tokenizers.huggingface import JsonTokenizer
from megatape.data.tokenizers.tokenizer import JSON_FILE
from megatape.errors import UserError


@dataclass
class LoadedModel:
    """A loaded model.

    Attributes:
        name: Name for messages: the folder that the model was loaded from.
        model: Transformers model.
        tokenizer: Transformers tokenizer.
        folder: Model folder, which may be temporary: it exists until the `load_trained` context ends.
    """

    name: str
    model: Any
    tokenizer: Any
    folder: Path = Path()
    _text_tokenizer: JsonTokenizer | None = field(default=None, init=False, repr=False, compare=False)

    def text_tokenizer(self) -> JsonTokenizer:
        """Return the tokenizer as in training, with its chat template. The first call opens its file.

        Raises:
            UserError: The file is corrupted.
        """
        if self._text_tokenizer is None:
            self._text_tokenizer = json_tokenizer(self.folder / JSON_FILE)
            # Messages must not name a temporary folder.
            self._text_tokenizer.origin = self.name
        return self._text_tokenizer

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return int(self.model.config.vocab_size)

    @property
    def max_positions(self) -> int:
        """Maximum text length in tokens that the model was made for."""
        return int(self.model.config.max_position_embeddings)

    def check_length(self, num_tokens: int) -> None:
        """Check that the model supports a text of this length.

        Raises:
            UserError: The encoding draws a different position for each token, but has too few positions.
        """
        encoding = getattr(self.model.base_model, "encoding", None)
        if encoding is None:
            return
        num_positions = encoding.positions(random_offset=False).drawn_from
        if 0 < num_positions < num_tokens:
            raise UserError(
                f"{self.name} draws from {num_positions} positions, too few for a text of {num_tokens} tokens: shorten it"
            )

    @torch.no_grad()
    def logits(self, tokens: Tensor) -> Tensor:
        """Compute the logits of texts.

        Args:
            tokens: Token ids, int64 [B, N].

        Returns:
            float32 [B, N, V], on the model's device.

        Raises:
            UserError: The texts are too long for the encoding, see `check_length`.
        """
        self.check_length(tokens.shape[1])
        logits: Tensor = self.model(input_ids=tokens.to(self.model.device), use_cache=False).logits
        return logits.float()

    def continuations(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        """Continue prompts, always choosing the likeliest token.

        Args:
            prompts: Token ids of each prompt. All prompts have the same length, because there is no padding.
            num_tokens: Maximum number of new tokens.

        Returns:
            New token ids for each prompt, fewer if the model ends the text.
        """
        tokens = torch.tensor(prompts, device=self.model.device)
        mask = torch.ones_like(tokens)
        output = self.model.generate(tokens, attention_mask=mask, max_new_tokens=num_tokens, do_sample=False)
        return output[:, tokens.shape[1] :].tolist()
