"""Greedy continuations of prompts."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megatape.hf.loading import LoadedModel


def continuations(loaded: "LoadedModel", prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    """The likeliest `num_tokens` ids, one by one, after each prompt; fewer where the model ends the text.

    All prompts must have the same number of ids, so that nothing is padded."""
    import torch

    model, tokens = loaded.model, torch.tensor(prompts)
    tokens = tokens.to(model.device)
    output = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=num_tokens, do_sample=False)
    found: list[list[int]] = output[:, tokens.shape[1] :].tolist()
    return found
