"""Models that are ready to run."""

from dataclasses import dataclass
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
    """Model that is ready to generate.

    Attributes:
        name: Name in messages: the folder that it was loaded from.
        model: Model of transformers.
        tokenizer: Tokenizer of transformers.
        folder: Folder of the files. It exists while `load_trained` holds it.
    """

    name: str
    model: Any
    tokenizer: Any
    folder: Path = Path()

    def text_tokenizer(self) -> JsonTokenizer:
        """Open the tokenizer as training does, with its chat template. Raises UserError if it is corrupted."""
        tokenizer = json_tokenizer(self.folder / JSON_FILE)
        # The folder may be temporary.
        tokenizer.origin = self.name
        return tokenizer

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return int(self.model.config.vocab_size)

    @property
    def max_positions(self) -> int:
        """Length in tokens of the longest text that the model is made for."""
        return int(self.model.config.max_position_embeddings)

    def check_length(self, num_tokens: int) -> None:
        """Check that the model can have a text of this length.

        Raises:
            UserError: Its encoding draws a different position for each token, and has fewer positions.
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
            UserError: As `check_length`.
        """
        self.check_length(tokens.shape[1])
        logits: Tensor = self.model(input_ids=tokens.to(self.model.device), use_cache=False).logits
        return logits.float()

    def continuations(self, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
        """Continue prompts by the likeliest token each time.

        Args:
            prompts: Token ids of each prompt. All prompts have the same length, so that nothing is padded.
            num_tokens: Number of new tokens.

        Returns:
            New token ids of each prompt, fewer if the model ends the text.
        """
        tokens = torch.tensor(prompts, device=self.model.device)
        mask = torch.ones_like(tokens)
        output = self.model.generate(tokens, attention_mask=mask, max_new_tokens=num_tokens, do_sample=False)
        return output[:, tokens.shape[1] :].tolist()
