"""A trained model with text in and out, for use from Python."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatape.errors import UserError
from megatape.hf.generation.continuations import continue_prompts
from megatape.hf.generation.prompts import check_room, read_prompt
from megatape.hf.generation.sampling import Sampling
from megatape.hf.loading.load import load_trained
from megatape.hf.loading.loaded_model import LoadedModel
from megatape.utils.values.validation import as_type


class LanguageModel:
    """A trained model that continues texts and computes logits. `megatape.load` makes it.

    Args:
        loaded: Loaded model.

    Attributes:
        name: Folder that the model was loaded from.
        model: Transformers model, on the GPU if there is one, in evaluation mode.
        tokenizer: Transformers tokenizer.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self.name = loaded.name
        self.model = loaded.model
        self.tokenizer = loaded.tokenizer

    def __repr__(self) -> str:
        return f"LanguageModel({self.name!r})"

    def generate(self, prompt: str, **sampling: Any) -> str:
        """Continue a text.

        Args:
            prompt: Text to continue.
            sampling: Fields of Sampling, such as `max_new_tokens`, `temperature`, `top_p`, `stop` or `seed`. By default up to
                64 tokens, each the likeliest one.

        Returns:
            The continuation, without the prompt.

        Raises:
            UserError: A sampling option is unknown or out of range, or the text is too long for the encoding.
        """
        return self.generate_all([prompt], **sampling)[0]

    def generate_all(self, prompts: list[str], **sampling: Any) -> list[str]:
        """Continue several texts in one batch. Arguments, errors and results as in `generate`.

        Args:
            prompts: Texts to continue.
            sampling: Sampling options. For several samples, repeat the prompt.
        """
        options = _read_options(sampling)
        if not prompts:
            return []
        read = [read_prompt(self._loaded, prompt) for prompt in prompts]
        longest = max(len(prompt.ids) for prompt in read)
        check_room(self._loaded, longest, options)
        torch.manual_seed(options.seed)
        continuations = continue_prompts(self._loaded, read, options)
        return [first.text for first, *_ in continuations]

    def encode(self, text: str) -> Tensor:
        """Return the token ids of a text as the model reads it, int64 [1, N]."""
        return torch.tensor([read_prompt(self._loaded, text).ids])

    def decode(self, tokens: Tensor) -> str:
        """Return the text of token ids [N] or [1, N]."""
        text: str = self.tokenizer.decode(tokens.flatten().tolist())
        return text

    def __call__(self, tokens: Tensor) -> Tensor:
        """Compute logits.

        Args:
            tokens: Token ids, int64 [B, N].

        Returns:
            float32 [B, N, V] on the model's device, without gradients.
        """
        return self._loaded.logits(tokens)


def _read_options(sampling: dict[str, Any]) -> Sampling:
    """Return checked sampling options. Raises UserError if one is unknown or out of range."""
    allowed = sorted(Sampling.model_fields.keys() - {"samples"})
    unknown = sorted(sampling.keys() - set(allowed))
    if unknown:
        raise UserError(f"{unknown[0]} is not a sampling option: choose among {', '.join(allowed)}")
    return as_type(sampling, Sampling)


def load_language_model(
    folder: Path, *, base: Path | None = None, adapter: Path | None = None, trust_remote_code: bool = False
) -> LanguageModel:
    """Load a trained model from any kind of model folder. Arguments and errors as in `megatape.load`."""
    with load_trained(folder, base=base, adapter=adapter, trust_remote_code=trust_remote_code) as loaded:
        # With this tokenizer and the weights in memory, a checkpoint's temporary export is no longer needed.
        loaded.text_tokenizer()
        return LanguageModel(loaded)
