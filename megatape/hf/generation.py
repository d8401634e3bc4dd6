"""Text from a trained model."""

from pathlib import Path
from typing import Any

import torch

from megatape.hf.loading import load_trained

MAX_NEW_TOKENS = 2**20  # a slip of the finger shows at once, not after days


def generate_text(
    folder: Path,
    prompt: str,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    trust_remote_code: bool = False,
    base: Path | None = None,
) -> str:
    """Continue `prompt` with the model in `folder`, an export or a checkpoint; returns prompt and continuation.

    temperature: 0 takes the likeliest token each time; above 0 samples from softmax(logits / temperature), the same text
    for the same seed. trust_remote_code, base: as load_trained takes them. Raises FileNotFoundError or ValueError for wrong
    arguments."""
    if not prompt:
        raise ValueError("--prompt is empty: give at least one character")
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise ValueError(f"--prompt {prompt!r} is not valid UTF-8: give it in the encoding of the terminal") from None
    if max_new_tokens < 1:
        raise ValueError(f"--max-new-tokens is {max_new_tokens}: give at least 1")
    if max_new_tokens > MAX_NEW_TOKENS:
        raise ValueError(f"--max-new-tokens is {max_new_tokens}: give at most {MAX_NEW_TOKENS}")
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"--temperature is {temperature}: give 0 for the likeliest text, or more to sample")
    # top_k 0 and top_p 1: sample from the model's own distribution, not from transformers' default cut of it.
    sampling: dict[str, Any] = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    with load_trained(folder, trust_remote_code=trust_remote_code, base=base) as loaded:
        model, tokenizer = loaded.model, loaded.tokenizer
        inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
        torch.manual_seed(seed)
        output = model.generate(**inputs, max_new_tokens=max_new_tokens, **sampling)
        return tokenizer.decode(output[0], skip_special_tokens=True)
