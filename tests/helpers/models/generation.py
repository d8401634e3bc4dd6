"""Drawing random prompts, and generating a fixed number of tokens from them."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.helpers.models.exports import ENCODINGS
from tests.helpers.models.memory_checkpoint import VOCAB_SIZE

NUM_NEW = 24
# Shapes and encodings whose caches differ
CACHED_MODELS = [(shape, encoding) for shape, encoding in ENCODINGS if shape in ("grouped", "log") or "mixture" in shape]


def generate(model: PreTrainedModel, tokens: Tensor, mask: Tensor | None = None, **options: Any) -> Tensor:
    """Return the NUM_NEW tokens following each row, [B, NUM_NEW]. No row ends early."""
    if mask is None:
        mask = torch.ones_like(tokens)
    output = model.generate(tokens, attention_mask=mask, max_new_tokens=NUM_NEW, min_new_tokens=NUM_NEW, **options)
    return output[:, tokens.shape[1] :]


def generate_alone(model: PreTrainedModel, rows: list[Tensor], **options: Any) -> Tensor:
    """Return the tokens following each row, generating them row by row, [number of rows, NUM_NEW]."""
    return torch.cat([generate(model, row[None], **options) for row in rows])


def random_prompts(*lengths: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, VOCAB_SIZE, (length,), generator=generator) for length in lengths]


def pad_left(rows: list[Tensor], value: int = 0) -> tuple[Tensor, Tensor]:
    """Return rows padded on the left with `value`, and their mask."""
    width = max(len(row) for row in rows)
    tokens = []
    mask = []
    for row in rows:
        num_padding = width - len(row)
        tokens.append(torch.cat([torch.full((num_padding,), value), row]))
        mask.append(torch.cat([torch.zeros(num_padding), torch.ones(len(row))]).long())
    return torch.stack(tokens), torch.stack(mask)
