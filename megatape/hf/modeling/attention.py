"""Attention over values [v | e], which are wider or narrower than keys. Memory grows with the tokens, not with their pairs.

Shapes: B batch, N new tokens, K keys (new and cached), H query heads, L key/value heads, R head size, W width of e.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

# First token of each row that is not padding, and the token after the last.
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
    """Compute transformers' "sdpa" attention.

    Args:
        module: Attention layer.
        query: [B, H, N, R].
        key: [B, L, K, R].
        value: [B, L, K, any width].
        mask: Mask as transformers makes it, [B, 1 or H, N, K], true or zero where a key is visible. None for a causal mask.
        scaling: Factor of the scores.
        spans: Spans of the rows instead of a mask, if there is no cache (N = K).
        **kwargs: Further arguments of transformers, which are ignored.

    Returns:
        Outputs [B, N, H, width of values], zero on padding of the spans, and None in place of attention weights.
    """
    width = value.shape[-1]
    extra = width - key.shape[-1]
    if extra and query.shape[2] == 1:
        return one_query_attention(query, key, value, mask, scaling), None

    # PyTorch's flash kernels need keys as wide as values. Zeros change no score, and cost less than computing scores twice.
    if extra < 0:
        value = F.pad(value, (0, -extra))
    elif extra > 0:
        # Queries are stored by token, because outputs then are as well. Keys are stored by head, which is read faster.
        query = F.pad(query.transpose(1, 2), (0, extra)).transpose(1, 2)
        key = F.pad(key, (0, extra))

    if spans is None:
        output, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=scaling)
        return output[..., :width], None

    batch, heads, length, _ = query.shape
    output = value.new_zeros(batch, length, heads, value.shape[-1])
    for row, (first, end) in enumerate(spans):
        if first == end:
            continue
        span = (slice(row, row + 1), slice(None), slice(first, end))
        attended, _ = sdpa_attention_forward(module, query[span], key[span], value[span], None, scaling=scaling)
        output[row, first:end] = attended[0]
    return output[..., :width], None


def one_query_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Compute attention of a single query (N = 1) by two products, which read the cache once and do not copy it.

    Arguments as in `wide_attention`.

    Returns:
        [B, 1, H, width of values].
    """
    batch, num_kv_heads, _, head_dim = key.shape
    query = (query * scaling).reshape(batch, num_kv_heads, -1, head_dim)  # [B, L, H / L, R]
    scores = query @ key.mT
    if mask is not None:
        if mask.shape[1] != 1:
            mask = mask.reshape(scores.shape)
        if mask.is_floating_point():
            scores = scores + mask
        else:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).flatten(1, 2)[:, None]


def find_spans(attention_mask: Tensor) -> Spans | None:
    """Find the span of each row that is not padding.

    Args:
        attention_mask: [B, N], 0 on padding.

    Returns:
        Spans of the rows. None if nothing is padding, or if a row has padding between other tokens.
    """
    is_token = attention_mask.bool()
    if is_token.all():
        return None
    first = is_token.long().argmax(1)
    end = first + is_token.sum(1)
    index = torch.arange(is_token.shape[1], device=is_token.device)
    is_in_span = (index >= first[:, None]) & (index < end[:, None])
    if not torch.equal(is_in_span, is_token):
        return None
    return list(zip(first.tolist(), end.tolist(), strict=True))


def biased_mask(bias: Tensor, mask: Tensor | None, past: int, dtype: torch.dtype) -> Tensor:
    """Combine a bias and a mask into one tensor to add to the scores.

    Args:
        bias: [B or 1, H, N, K].
        mask: Mask as transformers makes it, bool (true where a key is visible) or a tensor to add. None for a causal mask.
        past: Number of keys before that of the first query's token.
        dtype: Precision of the scores.
    """
    if mask is None:
        is_hidden = bias.new_ones(bias.shape[2:], dtype=torch.bool).triu(past + 1)
    elif mask.dtype == torch.bool:
        is_hidden = ~mask
    else:
        is_hidden = mask < 0
    return bias.to(dtype).masked_fill(is_hidden, torch.finfo(dtype).min)
