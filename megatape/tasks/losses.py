"""Losses of a trained model on windows of a text."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from megatape.hf.loading import LoadedModel

BATCH_TOKENS = 2**12  # per forward pass, whose logits are [4096, V]


@torch.no_grad()
def window_losses(loaded: LoadedModel, tokens: np.ndarray, begins: Sequence[int], length: int) -> Iterator[Tensor]:
    """Losses in nats, float32 [windows, length], of the windows of `length` tokens at `begins`, a batch at a time.

    A window predicts tokens begin + 1 .. begin + length, each from those of the window before it."""
    model = loaded.model
    batch = max(1, BATCH_TOKENS // length)
    for first in range(0, len(begins), batch):
        chosen = [tokens[begin : begin + length + 1] for begin in begins[first : first + batch]]
        samples = torch.from_numpy(np.stack(chosen)).to(model.device)
        logits = model(input_ids=samples[:, :-1], use_cache=False).logits.float()
        yield cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten(), reduction="none").view(-1, length).cpu()
