"""Perplexity at several sequence lengths, on the same text."""

import math
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from megatape.data.dataset import TokenDataset
from megatape.hf.loading import LoadedModel

MAX_TOKENS = 2**15  # length of the text
BATCH_TOKENS = 2**12  # per forward pass, whose logits are [4096, V]


@torch.no_grad()
def evaluate_perplexity(loaded: LoadedModel, data: Path, length: int, longest: int) -> float:
    """Exponential of the mean loss (nats) on the start of the validation split, cut into sequences of `length` tokens.

    Every length sees the same text: up to 32,768 tokens, in whole sequences of `longest` tokens, a multiple of `length`. The
    text is packed as in training, and every sequence starts without context. Raises ValueError if the split is shorter
    than `longest`."""
    dataset, model = TokenDataset(data, "validation", length), loaded.model
    num_tokens = min(TokenDataset(data, "validation", longest).num_samples, max(1, MAX_TOKENS // longest)) * longest
    if hasattr(model.config, "position_length"):
        model.config.position_length = length  # RandPE spreads a sequence over this many positions
    total, batch = 0.0, max(1, BATCH_TOKENS // length)
    for begin in range(0, num_tokens // length, batch):
        indices = range(begin, min(begin + batch, num_tokens // length))
        samples = torch.from_numpy(np.stack([dataset.tokens(index) for index in indices])).to(model.device)
        logits = model(input_ids=samples[:, :-1], use_cache=False).logits
        total += cross_entropy(logits.flatten(0, 1).float(), samples[:, 1:].flatten(), reduction="sum").item()
    return math.exp(total / num_tokens)
