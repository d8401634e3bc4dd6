"""Attention over values that are wider than keys, [v | e], or narrower, in memory that grows with the tokens, not their pairs.

B batch, N new tokens, K keys (new and cached), H query heads, L key/value heads, R head size, W width of e.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

Spans = list[tuple[int, int]]


def wide_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    spans: Spans | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' "sdpa" attention of query [B, H, N, R] over key [B, L, K, R] and value [B, L, K, .].

    mask: as transformers makes it, [B, 1 or H, N, K], true or zero where a key is seen; None if nothing but later tokens is
    hidden. spans: instead of a mask, where each row's tokens lie between its padding, if they are all that there are (N = K).
    Returns the outputs [B, N, H, .], zero on padding, and no weights.
    """
    extra = value.shape[-1] - key.shape[-1]
    width = value.shape[-1]
    if extra and query.shape[2] == 1:
        return one_query_attention(query, key, value, mask, scaling), None
    if extra < 0:
        value = F.pad(value, (0, -extra))
    elif extra:
        # PyTorch's flash kernels need keys as wide as values. Zeros change no score, and cost less than scoring twice.
        # In memory queries go by tokens, since outputs then do, too, and keys by heads, which is read faster.
        query = F.pad(query.transpose(1, 2), (0, extra)).transpose(1, 2)
        key = F.pad(key, (0, extra))
    if spans is None:
        out, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=scaling)
        return out[..., :width], None
    batch, heads, length, _ = query.shape
    out = value.new_zeros(batch, length, heads, value.shape[-1])
    for row, (first, end) in enumerate(spans):
        if first < end:
            part = slice(row, row + 1), slice(None), slice(first, end)
            attended, _ = sdpa_attention_forward(module, query[part], key[part], value[part], None, scaling=scaling)
            out[row, first:end] = attended[0]
    return out[..., :width], None


def one_query_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Attention for N = 1: two products that read the cache once, without a copy of it. Returns [B, 1, H, R + W]."""
    query = (query * scaling).reshape(*key.shape[:2], -1, key.shape[-1])  # [B, L, H / L, R]
    scores = query @ key.mT
    if mask is not None:
        mask = mask if mask.shape[1] == 1 else mask.reshape(scores.shape)
        scores = scores + mask if mask.is_floating_point() else scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).flatten(1, 2)[:, None]


def find_spans(attention_mask: Tensor) -> Spans | None:
    """First token of each row [B, N] of a mask that is not padding, and the one after the last.

    None if nothing is padding, or some lies between the others.
    """
    real = attention_mask.bool()
    if real.all():
        return None
    first = real.long().argmax(1)
    count = real.sum(1)
    index = torch.arange(real.shape[1], device=real.device)
    between = (index >= first[:, None]) & (index < (first + count)[:, None])
    if not torch.equal(between, real):
        return None
    return list(zip(first.tolist(), (first + count).tolist(), strict=True))


def biased_mask(bias: Tensor, mask: Tensor | None, past: int, dtype: torch.dtype) -> Tensor:
    """bias [B or 1, H, N, K] and the causal mask in one, to be added to the scores.

    mask: what transformers made, bool (true: may be seen) or to be added, or None if nothing but later tokens is hidden. past:
    number of the keys before that of the first query's token.
    """
    lowest = torch.finfo(dtype).min
    if mask is None:
        hidden = bias.new_ones(bias.shape[2:], dtype=torch.bool).triu(past + 1)
    else:
        hidden = ~mask if mask.dtype == torch.bool else mask < 0
    return bias.to(dtype).masked_fill(hidden, lowest)
